"""One real cluster for the whole session; a namespace of its own and a look for left-overs for each test."""

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
import yaml

from hack.cluster.cluster import Cluster
from hack.cluster.node import Node
from hack.image import gpu_report, oci, platforms
from tests.e2e import clusters, evidence
from tests.e2e.host_driver import HostDriver
from tests.e2e.karpenter import crds_applied
from tests.e2e.node_view import NodeView
from tests.e2e.placed import Placed
from tests.e2e.waiting import until
from tests.e2e.world import World, in_namespace
from tests.unit.manifests import groups


@pytest.fixture(scope="session")
def report_image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Archive of the image that tells what a container was given."""
    archive = tmp_path_factory.mktemp("images") / "gpu-report.tar"
    image, _ = gpu_report.image(gpu_report.NAME, platforms.native())
    oci.write(image, archive)
    return archive


@pytest.fixture(scope="session")
def cluster(report_image: Path) -> Iterator[Cluster]:
    """A cluster of one node, without a driver."""
    with clusters.running(clusters.DIRECTORY, 1, report_image) as made:
        yield made


@pytest.fixture(scope="session")
def node(cluster: Cluster) -> Node:
    """The node."""
    return cluster.nodes[0]


@pytest.fixture(scope="session")
def node_view(node: Node) -> NodeView:
    """What the driver keeps on the node."""
    return NodeView(node)


@pytest.fixture(scope="session")
def session_driver(cluster: Cluster, node: Node) -> HostDriver:
    """The driver as host process, not started."""
    return HostDriver(cluster, node)


@pytest.fixture
def driver(session_driver: HostDriver) -> HostDriver:
    """The driver as host process, with simulated GPUs and time slicing on, ready."""
    session_driver.ensure()
    return session_driver


@pytest.fixture
def namespace(cluster: Cluster, node_view: NodeView) -> Iterator[World]:
    """A namespace of its own, whatever driver runs. At the end it is deleted, and nothing may be left on the node."""
    with in_namespace(cluster, "e2e") as world:
        yield world
    until(lambda: not node_view.left_behind(), lambda: f"the node to be clean: {node_view.left_behind()}", 60.0)


@pytest.fixture
def world(driver: HostDriver, namespace: World) -> Iterator[World]:
    """A namespace, with the driver as host process; it runs again when the test is over, whatever was done to it."""
    yield namespace
    driver.resume()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure says where everything is that was logged."""
    report = yield
    for made in clusters.STARTED if report.failed else ():
        if made.logs.is_dir():
            report.sections.append(("logs of all components", str(evidence.keep(made, f"{item.name}-{report.when}"))))
    return report


@pytest.fixture(scope="module")
def karpenter_cluster(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster, with Karpenter's CRDs."""
    with crds_applied(cluster):
        yield cluster


@pytest.fixture
def placed(cluster: Cluster) -> Iterator[Placed]:
    """The chart's DaemonSet with the values for EKS, and nodes that a test adds."""
    made = Placed(cluster)
    made.open(yaml.safe_load(groups.EKS_VALUES.read_text(encoding="utf-8")))
    yield made
    made.close()
