"""`paceline fetch URI DIR`: a model's files from hub, object store, registry or web server into a folder.

Run by the cache Job, by an init container, or by hand. Knows files and digests; nothing about what is in a model beyond
which file names one needs, and no torch.
"""

from paceline_runtime.fetch.arguments import add_arguments
from paceline_runtime.fetch.command import run

__all__ = ["add_arguments", "run"]
