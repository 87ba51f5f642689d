"""Facts about checkpoints from headers, the rules of compatibility, memory arithmetic. No torch, nothing of ours."""

from .budget import Budget
from .checkpoint import draft_facts, read_draft, read_target, target_facts
from .errors import MetadataError, MissingFileError, SourceError
from .facts import DraftFacts, GdnFacts, MoeFacts, RopeFacts, TargetFacts
from .inspection import Inspection, check_locations, inspect_pair
from .location import Location, open_location, pinned_location, sole_gguf
from .pair import Options
from .planner import Plan, PlanOptions, plan
from .rules import RULES, Rule, check, option_problems
from .verdict import Problem, Verdict

__all__ = [
    "RULES",
    "Budget",
    "DraftFacts",
    "GdnFacts",
    "Inspection",
    "Location",
    "MetadataError",
    "MissingFileError",
    "MoeFacts",
    "Options",
    "Plan",
    "PlanOptions",
    "Problem",
    "RopeFacts",
    "Rule",
    "SourceError",
    "TargetFacts",
    "Verdict",
    "check",
    "check_locations",
    "draft_facts",
    "inspect_pair",
    "open_location",
    "option_problems",
    "pinned_location",
    "plan",
    "read_draft",
    "read_target",
    "sole_gguf",
    "target_facts",
]
