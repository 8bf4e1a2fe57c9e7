"""The node manifests: they make nodes that the driver runs on, and on which nobody else offers the GPUs."""

import re
import tomllib

import pytest
import yaml

from hack.cluster import build, published
from tests.unit.manifests import agreement, groups

ALL = [*groups.of_eksctl(), *groups.of_karpenter()]
GPU_TAINT = ({"key": "nvidia.com/gpu", "value": "true", "effect": "NoSchedule"},)


@pytest.mark.parametrize("group", ALL, ids=lambda group: group.name)
def test_nodes_are_as_the_chart_wants_them_and_have_no_other_publisher(group: groups.Group) -> None:
    agreement.check(group)


def test_each_tool_makes_nodes_of_both_systems() -> None:
    for found in (groups.of_eksctl(), groups.of_karpenter()):
        assert sorted(group.bottlerocket is None for group in found) == [False, True]


def test_user_data_switches_both_built_in_publishers_off_and_nothing_else() -> None:
    assert tomllib.loads(groups.USER_DATA.read_text(encoding="utf-8")) == {"settings": agreement.OFF}


@pytest.mark.parametrize(
    ("labels", "runs"),
    [
        pytest.param({"gpu-mode": "dra", "nvidia.com/gpu.present": "true"}, True, id="meant for it"),
        # As AL2023 labels each node with a GPU from Kubernetes 1.35 on.
        pytest.param({"nvidia.com/gpu.present": "true"}, False, id="a device plugin's"),
        pytest.param({"gpu-mode": "dra"}, False, id="no GPU"),
        pytest.param({"gpu-mode": "dra", "nvidia.com/gpu.present": "true", **agreement.AUTO}, False, id="Auto Mode"),
        pytest.param({"nvidia.com/gpu.present": "true", **agreement.AUTO}, False, id="Auto Mode, unlabelled"),
    ],
)
def test_on_eks_the_driver_runs_where_it_is_wanted_and_nowhere_else(labels: dict[str, str], runs: bool) -> None:
    assert agreement.runs_on(agreement.placement(eks=True), labels, GPU_TAINT) is runs


@pytest.mark.parametrize("path", groups.POOLS, ids=lambda path: path.stem)
def test_pool_is_static_with_room_for_the_node_that_replaces_another(path: groups.Path) -> None:
    spec = groups.one(path, "NodePool")["spec"]
    assert spec["replicas"] > 0
    assert set(spec["limits"]) == {"nodes"}
    assert spec["limits"]["nodes"] > spec["replicas"]
    assert set(spec) == {"replicas", "limits", "disruption", "template"}
    # What says when to consolidate is ignored in static pools, silently.
    assert set(spec["disruption"]) == {"budgets"}


@pytest.mark.parametrize("path", groups.POOLS, ids=lambda path: path.stem)
def test_pool_has_a_class_of_karpenters_own_and_one_zone(path: groups.Path) -> None:
    template = groups.one(path, "NodePool")["spec"]["template"]["spec"]
    assert (template["nodeClassRef"]["group"], template["nodeClassRef"]["kind"]) == (
        "karpenter.k8s.aws",
        "EC2NodeClass",
    )
    required = {each["key"]: (each["operator"], each["values"]) for each in template["requirements"]}
    operator, zones = required["topology.kubernetes.io/zone"]
    assert (operator, len(zones)) == ("In", 1)
    assert required["karpenter.sh/capacity-type"] == ("In", ["on-demand"])


@pytest.mark.parametrize("path", groups.POOLS, ids=lambda path: path.stem)
def test_image_is_a_fixed_version_by_alias(path: groups.Path) -> None:
    (term,) = groups.one(path, "EC2NodeClass")["spec"]["amiSelectorTerms"]
    assert re.fullmatch(r"(bottlerocket|al2023)@v[0-9.]+", term["alias"])


def test_karpenters_gate_for_static_pools_is_on() -> None:
    values = yaml.safe_load((groups.MANIFESTS / "karpenter/values.yaml").read_text(encoding="utf-8"))
    assert values == {"settings": {"featureGates": {"staticCapacity": True}}}


@pytest.mark.parametrize("path", groups.FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_file_names_nobodys_account(path: groups.Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"\b\d{12}\b|arn:aws|ami-[0-9a-f]{8,}", text)
    ids = re.findall(r"\b(?:vpc|subnet|sg)-([0-9a-f]{17})\b", text)
    assert {len(set(found)) for found in ids} <= {1}


def test_karpenter_that_runs_in_tests_is_the_one_whose_rules_are_applied() -> None:
    required = (build.SOURCES / "karpenter/go.mod").read_text(encoding="utf-8")
    assert f"{published.KARPENTER.path} {published.KARPENTER.version}\n" in required
