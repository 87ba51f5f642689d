"""Inputs: tiny random hybrids in float64, and their transformers counterparts."""

import pytest
import torch
from hybrid_models import HYBRIDS, save_hybrid
from tiny_models import reference

from paceline_runtime.loaders import load_target


@pytest.fixture(scope="session", params=HYBRIDS)
def hybrid_path(request, tmp_path_factory):
    """A checkpoint of each family, as transformers saves it."""
    return save_hybrid(request.param, tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def hybrid(hybrid_path):
    """Our model of it."""
    return load_target(hybrid_path, dtype=torch.float64)


@pytest.fixture(scope="session")
def oracle(hybrid_path):
    """transformers' model of it."""
    return reference(hybrid_path)


@pytest.fixture
def no_grad():
    with torch.no_grad():
        yield
