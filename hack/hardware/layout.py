"""What is where in a pack and in what comes out of it. Names only, for the sides that write and read."""

from typing import Final

ARCHIVES: Final = ("kubernetes.tar.xz", "runtime.tar.xz", "python.tar.xz")
FACTS: Final = "pack.json"

PROGRAMS: Final = "programs"
"""The cluster's programs."""
SYSTEM: Final = "system"
"""Files that Debian's packages would bring, below it where they belong below ``/``."""
SITE: Final = "site"
"""Python packages of driver and cluster."""

NODE: Final = "containerd"
NODE_NAMES: Final = ("containerd-shim-runc-v2", "ctr")
"""Other names of the program ``NODE``, as hard links."""
