"""`paceline fetch URI DIR`: a model's files from hub, object store, registry or web server into a folder.

The cache Job, an init container or a person runs it. The package knows files and digests; of a model it knows which file
names one needs and nothing more, and it works without torch.
"""

from paceline_runtime.fetch.arguments import add_arguments
from paceline_runtime.fetch.command import run

__all__ = ["add_arguments", "run"]
