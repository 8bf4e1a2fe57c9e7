"""Karpenter's core, with its provider without machines, makes the nodes of a static NodePool; the driver goes there.

Building it takes twenty minutes, so that these tests have a marker of their own: make karpenter.
"""

from pathlib import Path
from typing import Final

import pytest

from hack.cluster.cluster import Cluster
from tests.e2e import guide
from tests.e2e.karpenter import Karpenter
from tests.e2e.placed import Placed
from tests.e2e.waiting import until
from tests.unit.manifests import groups

pytestmark = [pytest.mark.karpenter, pytest.mark.timeout(600)]

PROVISIONING: Final = "static.provisioning"
"""Karpenter's controller that makes the nodes of static pools."""


@pytest.mark.parametrize("path", groups.POOLS, ids=lambda path: path.stem)
def test_karpenter_makes_the_nodes_of_a_static_pool_and_the_driver_goes_there(
    karpenter_cluster: Cluster, placed: Placed, path: Path, tmp_path: Path
) -> None:
    pool = groups.one(path, "NodePool")
    with Karpenter(karpenter_cluster, tmp_path, pool) as karpenter:
        nodes = karpenter.wait_nodes(pool["spec"]["replicas"])
        placed.wait_on({node["metadata"]["name"] for node in nodes})
        for node in nodes:
            assert pool["spec"]["template"]["metadata"]["labels"].items() <= node["metadata"]["labels"].items()
            assert pool["spec"]["template"]["spec"]["taints"][0] in node["spec"]["taints"]
        assert PROVISIONING in karpenter.controllers()
        until(lambda: karpenter.wait_ready()["status"].get("nodes") == len(nodes), "the pool to count its nodes")
        for step in guide.steps("karpenter.md"):
            if pool["metadata"]["name"] in step.command:
                step.check(guide.run(step.command, karpenter_cluster.environment(), tmp_path), {})


def test_static_pool_makes_no_node_and_is_ready_all_the_same_without_karpenters_gate(
    karpenter_cluster: Cluster, tmp_path: Path
) -> None:
    with Karpenter(karpenter_cluster, tmp_path, groups.one(groups.POOLS[0], "NodePool"), static=False) as karpenter:
        karpenter.wait_ready()
        # Nobody is there who would ever make one.
        assert PROVISIONING not in karpenter.controllers()
        assert not karpenter.nodes()
