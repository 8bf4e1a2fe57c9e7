"""``python -m hack.hardware``."""

import sys

from hack.hardware.cli import main

sys.exit(main())
