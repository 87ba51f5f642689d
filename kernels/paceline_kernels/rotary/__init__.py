"""Rotary position embeddings on the leading part of each head."""

from paceline_kernels.rotary.reference import RotaryTable, apply_rotary, rotary_table

__all__ = ["RotaryTable", "apply_rotary", "rotary_table"]
