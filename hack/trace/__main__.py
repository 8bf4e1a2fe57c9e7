"""``python -m hack.trace``."""

import sys

from hack.trace.cli import main

sys.exit(main())
