"""``python -m hack.bench``."""

import sys

from hack.bench.cli import main

sys.exit(main())
