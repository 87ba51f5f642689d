"""`python -m paceline_runtime` is `paceline`."""

import sys

from paceline_runtime.cli import main

if __name__ == "__main__":
    sys.exit(main())
