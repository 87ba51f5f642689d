"""What the planner says of a hybrid from its headers is what its weights take when they are loaded."""

import pytest
import torch
from hybrid_models import HYBRIDS
from mtp_models import save_with_mtp

from paceline_compat.facts.checkpoint import read_target
from paceline_compat.memory.parts import target_weight_bytes
from paceline_runtime.loaders import load_target
from paceline_runtime.speculative.mtp.load import load_mtp


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", HYBRIDS)
def test_weights_and_the_head(name, dtype, tmp_path):
    """Also where norms and rates of decay are wider than the rest."""
    path = save_with_mtp(name, tmp_path).path
    facts, target = read_target(str(path)), load_target(path, dtype=dtype)

    assert target_weight_bytes(facts, dtype.itemsize) == target.memory_bytes()
    assert target_weight_bytes(facts, dtype.itemsize, "mtp") == load_mtp(target, 3).memory_bytes()
