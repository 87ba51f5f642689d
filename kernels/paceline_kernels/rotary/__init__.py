"""Rotary position embeddings on the leading part of each head.

The rotary layer makes the table; attention layers and `place_heads` apply it. It knows no kind of rope.
"""

from paceline_kernels.rotary.reference import RotaryTable, apply_rotary, rotary_table

__all__ = ["RotaryTable", "apply_rotary", "rotary_table"]
