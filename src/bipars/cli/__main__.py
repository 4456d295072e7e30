"""`python -m bipars.cli`."""

import sys

from bipars.cli import main

sys.exit(main())
