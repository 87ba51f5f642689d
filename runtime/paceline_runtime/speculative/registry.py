"""Which proposer an algorithm's name means. `engine.build` asks; the proposer's module is imported then."""

from __future__ import annotations

from paceline_compat.facts.records import DraftFacts
from paceline_compat.rules.pair import default_num_drafts
from paceline_runtime.config import EngineConfig
from paceline_runtime.layers.parameters import StorageOf
from paceline_runtime.models.base import TargetModel
from paceline_runtime.speculative.base import Proposer


def load_proposer(
    config: EngineConfig,
    target: TargetModel,
    max_model_len: int,
    draft: DraftFacts | None = None,
    storage_of: StorageOf | None = None,
) -> Proposer | None:
    """The configured proposer, loaded for `target`; None for `off`. `draft` is what was read of a dflash draft's checkpoint.

    `storage_of` is as in `Parameters`.

    Raises what the algorithm's own loader raises.
    """
    given = config.speculative_num_steps
    num_drafts = default_num_drafts(config.speculative_algorithm, draft) if given is None else given
    match config.speculative_algorithm:
        case "off":
            return None
        case "ngram":
            from paceline_runtime.speculative.ngram import NgramProposer

            return NgramProposer(num_drafts)
        case "dflash":
            from paceline_runtime.speculative.dflash.load import load_proposer as load_dflash

            assert draft is not None, "EngineConfig.problems asks for it"
            return load_dflash(draft, target, num_drafts, target.dtype, target.device, max_model_len, storage_of)
        case "mtp":
            from paceline_runtime.speculative.mtp.load import load_mtp

            return load_mtp(target, num_drafts, dummy=config.dummy_weights, storage_of=storage_of)
        case other:
            raise ValueError(f"--speculative-algorithm {other} is not available for this model")
