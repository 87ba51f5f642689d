"""Inputs: tiny random targets in float64, dense and hybrid, and the hybrids' transformers counterparts."""

import pytest
import torch
from hybrid_models import HYBRIDS, save_hybrid
from tiny_models import reference, save_tiny

from paceline_runtime.loaders import load_target

VOCAB_SIZE = 64


@pytest.fixture(scope="session")
def target(tmp_path_factory):
    """A qwen3 target: at this scale its text is neither a loop nor noise, so every accept length occurs."""
    folder = tmp_path_factory.mktemp("tiny")
    path = save_tiny("qwen3", folder, num_hidden_layers=2, scale=0.12, vocab_size=VOCAB_SIZE)
    return load_target(path, dtype=torch.float64)


@pytest.fixture(scope="session")
def small_target(tmp_path_factory):
    """A llama target with eight tokens, for counting joint outcomes."""
    folder = tmp_path_factory.mktemp("small")
    path = save_tiny("llama", folder, num_hidden_layers=1, scale=0.12, vocab_size=8, hidden_size=32, eos_token_id=None)
    return load_target(path, dtype=torch.float64)


@pytest.fixture(scope="session", params=HYBRIDS)
def hybrid_path(request, tmp_path_factory):
    """A checkpoint of each hybrid family, as transformers saves it."""
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
