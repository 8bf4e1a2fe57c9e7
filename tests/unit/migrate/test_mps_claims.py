"""``dra-driver migrate --mps-as claims``: what MPS of the device plugin becomes, for whom, and what is said of it."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_driver.commands.main import main
from dra_driver_api.config import Mps, decode
from tests.unit.migrate.test_migrate import Migrated, config_map, deployment, gpus, sharing

Json = dict[str, Any]
MPS_LABEL = {"nvidia.com/device-plugin.config": "mps"}
WHOLE = {"version": "v1", "flags": {}}


@pytest.fixture
def migrate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*contents: Json, flags: tuple[str, ...] = ()) -> Migrated:
        file = tmp_path / "in.yaml"
        file.write_text(yaml.safe_dump_all(contents), encoding="utf-8")
        code = main(["migrate", str(file), "-o", str(tmp_path / "out"), "--mps-as=claims", *flags])
        out = capsys.readouterr()
        return Migrated(code, out.out + out.err, tmp_path / "out")

    return run


def mps(replicas: int = 4, **more: Any) -> Json:
    return sharing(gpus(replicas), block="mps", **more)


def claim_of(made: Migrated, name: str = "team-deployment-server") -> Json:
    """The claim beside a workload, which its pods name."""
    claim, changed = made.all(f"workloads/{name}.yaml")
    spec = changed["spec"]["template"]["spec"]
    assert spec["resourceClaims"] == [{"name": "gpu", "resourceClaimName": claim["metadata"]["name"]}]
    assert [container["resources"]["claims"] for container in spec["containers"]] == [
        [{"name": "gpu", "request": "gpu"}]
    ]
    return claim


@pytest.mark.parametrize("version", ["1.34", "1.36"])
def test_workload_has_one_named_claim_with_mps_and_no_limits_that_nobody_asked_for(
    migrate: Any, tmp_path: Path, version: str
) -> None:
    made = migrate(config_map(any=mps()), deployment(), flags=(f"--kubernetes-version={version}",))
    assert made.code == 0
    claim = claim_of(made)
    assert claim["kind"] == "ResourceClaim"
    devices = claim["spec"]["devices"]
    assert devices["requests"] == [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]
    (entry,) = devices["config"]
    assert entry["opaque"]["parameters"]["sharing"] == {"strategy": "MPS"}
    assert isinstance(decode(entry["opaque"]["parameters"]).sharing, Mps)
    written = tmp_path / "out" / "workloads" / "team-deployment-server.yaml"
    assert main(["validate", "--feature-gates=MPSSupport=true", str(written)]) == 0


def test_nodes_have_the_gate_and_no_shares(migrate: Any) -> None:
    made = migrate(config_map(any=mps()))
    assert made.values["featureGates"] == {"MPSSupport": True}
    assert "consumableShares" not in made.values
    assert "sharingProfile" not in made.values


def test_limits_that_the_device_plugin_had_are_lost_with_how_to_write_them(migrate: Any) -> None:
    made = migrate(config_map(any=mps(10)), deployment())
    assert "a client had 1/10 of threads and memory at most, and has no limit now" in made.report
    assert "mpsConfig: {defaultActiveThreadPercentage: 10, defaultPinnedDeviceMemoryLimit: AMOUNT}" in made.report
    assert "workloads shared a GPU with each other, and each has one of its own now" in made.report
    assert made.report.index("## Lost") < made.report.index("has no limit now")


def test_renamed_resource_is_a_gpu(migrate: Any) -> None:
    made = migrate(config_map(any=mps(renameByDefault=True)), deployment({"nvidia.com/gpu.shared": 1}))
    assert made.code == 0
    claim = claim_of(made)
    assert claim["spec"]["devices"]["requests"][0]["exactly"] == {"deviceClassName": "gpu.nvidia.com"}
    assert "config" in claim["spec"]["devices"]


def test_beside_nodes_with_shares_mps_is_for_whole_gpus_of_nodes_without(migrate: Any) -> None:
    maps = config_map(default=sharing(gpus(8)), mps=mps())
    made = migrate(maps, deployment(nodeSelector=MPS_LABEL))
    assert made.values["featureGates"] == {"ConsumableShares": True, "MPSSupport": True}
    assert made.values["consumableShares"] == 8
    assert made.values["sharingProfile"]["rules"] == [{"match": {"nodeLabels": MPS_LABEL}, "shares": "disabled"}]
    (request,) = claim_of(made)["spec"]["devices"]["requests"]
    assert request["exactly"]["selectors"] == [{"cel": {"expression": "!device.allowMultipleAllocations"}}]


@pytest.mark.parametrize("default", [sharing(gpus(8)), WHOLE], ids=["shares", "whole"])
def test_workload_of_which_nobody_knows_where_it_ran_is_asked_about_and_left_as_it_is(
    migrate: Any, default: Json
) -> None:
    made = migrate(config_map(default=default, mps=mps()), deployment())
    assert made.code == 1
    assert "Deployment team/server: only some nodes had MPS" in made.printed
    assert not (made.folder / "workloads").exists()


def test_workload_that_selects_its_nodes_is_not_asked_about(migrate: Any) -> None:
    made = migrate(config_map(default=WHOLE, mps=mps()), deployment(nodeSelector=MPS_LABEL))
    assert made.code == 0
    assert "sharing" in claim_of(made)["spec"]["devices"]["config"][0]["opaque"]["parameters"]


def test_workload_that_asks_for_nothing_of_it_has_no_claim(migrate: Any) -> None:
    made = migrate(config_map(any=mps()), deployment({"cpu": "1"}))
    assert (made.code, (made.folder / "workloads").exists()) == (0, False)


def test_several_configs_with_mps_count_the_one_that_gave_most(migrate: Any) -> None:
    server = deployment()
    server["spec"]["replicas"] = 9
    assert migrate(config_map(default=mps(4), mps=mps(10)), server).code == 0


def test_more_pods_than_a_gpu_had_clients_need_a_decision(migrate: Any) -> None:
    server = deployment()
    server["spec"]["replicas"] = 5
    made = migrate(config_map(any=mps(4)), server)
    assert made.code == 1
    assert "its 5 pods share one GPU now, which had 4 clients at most" in made.printed


def test_several_gpus_of_a_pod_need_a_decision(migrate: Any) -> None:
    made = migrate(config_map(any=mps(failRequestsGreaterThanOne=False)), deployment({"nvidia.com/gpu": 2}))
    assert made.code == 1
    assert "asks for 2 of nvidia.com/gpu: all its pods share one device now" in made.printed


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("DaemonSet", "its pods are on several nodes, and a named claim has a device of one"),
        ("Pod", "let Pods that shared one name the same claim"),
    ],
)
def test_kinds_for_which_one_claim_is_not_enough_need_a_decision(migrate: Any, kind: str, told: str) -> None:
    content = {**deployment(), "kind": kind}
    if kind == "Pod":
        content = {**content, "apiVersion": "v1", "spec": content["spec"]["template"]["spec"]}
    made = migrate(config_map(any=mps()), content)
    assert made.code == 1
    assert told in made.printed


def test_mps_on_mig_devices_needs_a_decision(migrate: Any) -> None:
    made = migrate(sharing(gpus(2), block="mps", flags={"migStrategy": "single"}), deployment())
    assert made.code == 1
    assert "MPS on MIG devices is not written" in made.printed
    assert "MPSSupport" not in made.values.get("featureGates", {})
