"""The clusters of end-to-end tests: which Kubernetes, where, what each starts with, and which there were."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Final

from hack.cluster import versions
from hack.cluster.cluster import Cluster
from hack.cluster.plan import Plan
from tests.e2e import manifests

VERSION: Final = os.environ.get("K8S_VERSION") or versions.KUBERNETES[0]
DIRECTORY: Final = Path(
    # Each worker of pytest-xdist has clusters of its own.
    (os.environ.get("E2E_DIRECTORY") or f"/tmp/dra-e2e-{VERSION}") + os.environ.get("PYTEST_XDIST_WORKER", "")
)
STARTED: Final[list[Cluster]] = []
"""All clusters of this session, for those who look for their logs."""
_KEEP: Final = os.environ.get("E2E_KEEP") == "1"


@contextmanager
def running(directory: Path, nodes: int, image: Path, apis: tuple[str, ...] = ()) -> Iterator[Cluster]:
    """A cluster without a driver, its nodes with the image of an archive, as long as the block takes.

    apis: API versions to switch on besides. What an earlier session has left in the directory is removed first.
    E2E_KEEP=1 lets the cluster run on.
    """
    made = Cluster(directory, Plan(kubernetes=VERSION, nodes=nodes, apis=apis))
    STARTED.append(made)
    with nullcontext(made.up()) if _KEEP else made:
        made.import_images(image)
        made.api.apply_all(manifests.KUBELET_RIGHTS)
        yield made
