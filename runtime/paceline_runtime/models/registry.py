"""From a checkpoint's facts to its model, by the module here that has the family's name. The loaders call it."""

from __future__ import annotations

import importlib
from typing import cast

from paceline_compat.facts.records import TargetFacts
from paceline_runtime.layers.parameters import Parameters
from paceline_runtime.models.base import TargetModel


def build_model(facts: TargetFacts, parameters: Parameters) -> TargetModel:
    """The model over memory that is not filled yet. `facts` are of a served family, and no rule refuses them."""
    module = importlib.import_module(f"paceline_runtime.models.{facts.family}")
    return cast(TargetModel, module.build(facts, parameters))
