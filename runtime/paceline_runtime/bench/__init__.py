"""`paceline bench`: what a step, a shared step and a peer take on this machine, beside what the machine could do at best.

The `paceline` command finds it through `add_arguments` and `run`. Nothing that serves requests imports it.
"""

from paceline_runtime.bench.command import add_arguments, run

__all__ = ["add_arguments", "run"]
