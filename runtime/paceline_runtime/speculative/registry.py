"""Which proposer an algorithm's name means; each is imported when it is first asked for. Called by `engine.build`."""

from __future__ import annotations

from paceline_runtime.config import EngineConfig
from paceline_runtime.models.base import TargetModel
from paceline_runtime.speculative.base import Proposer

DEFAULT_NUM_STEPS = 3


def load_proposer(config: EngineConfig, target: TargetModel, max_model_len: int) -> Proposer | None:
    """The configured proposer, loaded for `target`; None for `off`. Raises what the algorithm's own loader raises."""
    steps = config.speculative_num_steps
    match config.speculative_algorithm:
        case "off":
            return None
        case "ngram":
            from paceline_runtime.speculative.ngram import NgramProposer

            return NgramProposer(steps or DEFAULT_NUM_STEPS)
        case "dflash":
            from paceline_runtime.speculative.dflash.load import load_proposer as load_dflash

            assert config.speculative_draft_model_path is not None, "EngineConfig.problems asks for it"
            path = config.speculative_draft_model_path
            return load_dflash(path, target, steps, target.dtype, target.device, max_model_len)
        case "mtp":
            from paceline_runtime.speculative.mtp.load import load_mtp

            return load_mtp(config.model_path, target, steps, dummy=config.dummy_weights)
        case other:
            raise ValueError(f"--speculative-algorithm {other} is not available for this model")
