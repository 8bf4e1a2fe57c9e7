"""``python -m hack.image``."""

import sys

from hack.image.cli import main

if __name__ == "__main__":
    sys.exit(main())
