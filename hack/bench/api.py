"""The simulated API server as a process of its own, so that the driver's figures are the driver's alone.

``python -m hack.bench.api KUBECONFIG`` writes the file when it serves, and ends when its standard input does.
"""

import argparse
import sys
from pathlib import Path

from dra_driver.simulator.api_server import ApiServer


def main() -> int:
    """Serve until standard input ends, which it also does when the parent is killed."""
    parser = argparse.ArgumentParser(description="Serve the simulated Kubernetes API on loopback.")
    parser.add_argument("kubeconfig", type=Path, help="file to write once the server answers")
    options = parser.parse_args()
    with ApiServer() as server:
        server.kubeconfig(options.kubeconfig.with_suffix(".part")).rename(options.kubeconfig)
        sys.stdin.read()
    return 0


if __name__ == "__main__":
    sys.exit(main())
