"""The candidate selector of DFlash 2: one path through the candidates of a block, left to right from the anchor."""

from paceline_kernels.selector.reference import select_path

__all__ = ["select_path"]
