"""`python -m elmwright.jobs.cli`: the command without its console script."""

import sys

from elmwright.jobs.cli.command import main

sys.exit(main())
