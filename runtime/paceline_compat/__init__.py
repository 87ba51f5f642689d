"""Facts about checkpoints from headers, the rules of compatibility, memory arithmetic. No torch, nothing of ours."""

from paceline_compat.errors import MetadataError, MissingFileError, SourceError
from paceline_compat.facts.checkpoint import draft_facts, read_draft, read_target, target_facts
from paceline_compat.facts.records import DraftFacts, GdnFacts, MoeFacts, RopeFacts, TargetFacts
from paceline_compat.memory.planner import Plan, PlanOptions, plan
from paceline_compat.places.budget import Budget
from paceline_compat.places.location import Location, open_location, pinned_location, sole_gguf
from paceline_compat.rules.inspection import Inspection, check_locations, inspect_pair
from paceline_compat.rules.pair import Options
from paceline_compat.rules.table import RULES, Rule, check, option_problems
from paceline_compat.rules.verdict import Problem, Verdict

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
