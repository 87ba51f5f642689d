"""`python -m paceline_operator`: the operator image's entry point."""

import sys

from paceline_operator.main import main

sys.exit(main())
