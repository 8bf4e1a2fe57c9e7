"""``python -m dra_driver`` is the ``dra-driver`` command."""

import sys

from dra_driver.commands.main import main

if __name__ == "__main__":
    sys.exit(main())
