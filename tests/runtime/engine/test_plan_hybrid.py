"""What the planner says of a hybrid from its headers is what its states, journals and pages take."""

import pytest
import torch
from hybrid_models import HYBRIDS
from law_engine import make_engine
from mtp_models import save_with_mtp

from paceline_compat.facts.checkpoint import read_target
from paceline_compat.memory import parts as memory
from paceline_runtime.loaders import load_target
from paceline_runtime.speculative.mtp.load import load_mtp


@pytest.mark.parametrize("name", HYBRIDS)
def test_states_journals_pages_and_weights(name, tmp_path):
    """In float32, with the MTP head and three steps for two requests."""
    path = save_with_mtp(name, tmp_path).path
    facts, target = read_target(str(path)), load_target(path, dtype=torch.float32)
    proposer = load_mtp(target, 3)
    assert memory.target_weight_bytes(facts, 4) == target.memory_bytes()
    assert memory.target_weight_bytes(facts, 4, "mtp") == proposer.memory_bytes(0)
    assert 3 * memory.mtp_request_bytes(facts, 3, 4) == proposer.memory_bytes(3) - proposer.memory_bytes(0)

    engine = make_engine(target, proposer, max_running_req=2)
    states, pages = engine.executor.memory.states, engine.executor.memory.pages
    planned = memory.num_state_slots(facts, 2) * memory.slot_bytes(facts, 4) + 3 * 4 * memory.journal_row_bytes(facts, 4)
    assert planned == states.memory_bytes()
    token_bytes = memory.kv_bytes_per_token(facts, 4) + memory.mtp_kv_bytes_per_token(facts, 4)
    assert pages.num_pages * (64 * token_bytes + 4 * facts.hidden_size) == pages.memory_bytes()
