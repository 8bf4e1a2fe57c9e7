import contextlib
import json

import pytest
import yaml

from dra_driver.claims.store import STATE_FILE, Store
from dra_driver.commands import inventory as command
from dra_driver.commands import offered
from dra_driver.commands.main import main
from dra_driver.model.devices import Inventory
from dra_driver.model.errors import ApiError
from dra_driver.model.plan import Plan, PreparedDevice
from dra_driver.model.records import ClaimRecord, ClaimState
from tests.builders import DRIVER, claim_ref, make_gpu, make_mig


@pytest.fixture
def node(monkeypatch):
    """Lets the command see an inventory of the test's making."""

    class Source:
        def __init__(self, inventory):
            self.inventory = inventory
            self.closed = False

        def scan(self):
            return self.inventory

        def close(self):
            self.closed = True

    def install(*gpus, mig=()):
        source = Source(Inventory(driver=DRIVER, gpus=gpus, mig_devices=mig))
        monkeypatch.setattr(command, "_source", lambda read: source)
        monkeypatch.setattr(offered, "limited_source", lambda read: contextlib.nullcontext(source))
        return source

    for name in ("NODE_NAME", "SIMULATED_NODE", "NVIDIA_DRIVER_ROOT", "FEATURE_GATES", "CONSUMABLE_SHARES"):
        monkeypatch.delenv(name, raising=False)
    return install


def printed(capsys, *arguments):
    assert main(["inventory", *arguments]) == 0
    return capsys.readouterr().out


def test_json_has_the_facts_of_a_gpu_in_camel_case(node, capsys):
    node(make_gpu(3))

    (gpu,) = json.loads(printed(capsys, "-o", "json"))["gpus"]

    assert gpu == {
        "name": "gpu-3",
        "index": 3,
        "minor": 3,
        "uuid": "GPU-00000000-0000-4000-8000-000000000003",
        "pciBusId": "0000:04:00.0",
        "productName": "NVIDIA H200",
        "brand": "Nvidia",
        "architecture": "Hopper",
        "cudaComputeCapability": "9.0",
        "memoryBytes": 150754820096,
        "addressingMode": "None",
        "numaNode": 0,
        "pcieRoot": "pci0000:00",
        "migEnabled": False,
        "computeMode": "DEFAULT",
        "persistence": True,
    }


def test_json_has_the_driver(node, capsys):
    node()

    assert json.loads(printed(capsys, "-o", "json")) == {
        "driver": {"driverVersion": "580.159.04", "cudaDriverVersion": 13000, "nvmlVersion": "13.580.159.04"},
        "gpus": [],
        "migDevices": [],
    }


def test_json_names_the_parent_of_a_mig_device(node, capsys):
    gpu = make_gpu(mig_enabled=True)
    node(gpu, mig=(make_mig(gpu, 2),))

    (device,) = json.loads(printed(capsys, "-o", "json"))["migDevices"]

    assert (device["name"], device["parent"], device["parentUuid"]) == ("gpu-0-mig-1g18gb-19-2", "gpu-0", gpu.uuid)


def test_facts_that_are_not_known_are_null(node, capsys):
    node(make_gpu(memory_bytes=None, compute_mode=None))

    (gpu,) = json.loads(printed(capsys, "-o", "json"))["gpus"]

    assert (gpu["memoryBytes"], gpu["computeMode"]) == (None, None)


def test_yaml_says_the_same_as_json(node, capsys):
    gpu = make_gpu(mig_enabled=True)
    node(gpu, make_gpu(1), mig=(make_mig(gpu),))

    assert yaml.safe_load(printed(capsys, "-o", "yaml")) == json.loads(printed(capsys, "-o", "json"))


def test_the_table_has_a_row_for_each_gpu_and_mig_device(node, capsys):
    gpu = make_gpu(mig_enabled=True)
    node(gpu, make_gpu(1), mig=(make_mig(gpu),))

    lines = printed(capsys).splitlines()

    assert lines[0] == "NVIDIA driver 580.159.04"
    assert [line.split()[0] for line in lines[1:]] == ["DEVICE", "gpu-0", "gpu-0-mig-1g18gb-19-0", "gpu-1"]


def test_the_table_is_not_folded_in_a_pipe(node, capsys):
    node(make_gpu(product_name="NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition"))

    assert "Max-Q Workstation Edition   143771 MiB" in printed(capsys)


def test_a_node_without_gpus_says_so(node, capsys):
    node()

    assert "No GPU" in printed(capsys)


def test_slices_are_a_list_that_kubectl_takes(node, capsys):
    node(make_gpu(0), make_gpu(1))

    found = yaml.safe_load(printed(capsys, "-o", "slices", "--node-name", "node-a"))

    assert (found["apiVersion"], found["kind"]) == ("v1", "List")
    (item,) = found["items"]
    assert (item["apiVersion"], item["kind"]) == ("resource.k8s.io/v1", "ResourceSlice")
    assert item["metadata"] == {"name": "00000-gpu.nvidia.com-node-a"}
    assert item["spec"]["pool"] == {"name": "node-a", "generation": 1, "resourceSliceCount": 1}
    assert [device["name"] for device in item["spec"]["devices"]] == ["gpu-0", "gpu-1"]


def test_slices_use_no_yaml_aliases(node, capsys):
    node(make_gpu(0), make_gpu(1))

    assert "&id" not in printed(capsys, "-o", "slices", "--node-name", "node-a")


def test_names_of_slices_are_valid_when_the_node_name_is_cut(node, capsys):
    node()

    found = yaml.safe_load(printed(capsys, "-o", "slices", "--node-name", f"{'a' * 36}.b"))

    assert found["items"][0]["metadata"]["name"][-1].isalnum()


def test_slices_take_the_hosts_name_when_no_node_is_named(node, capsys, monkeypatch):
    node()
    monkeypatch.setattr(command.os, "uname", lambda: type("Uname", (), {"nodename": "Build-7"}))

    assert yaml.safe_load(printed(capsys, "-o", "slices"))["items"][0]["spec"]["nodeName"] == "build-7"


def test_a_host_name_that_is_no_node_name_is_refused(node, capsys, monkeypatch):
    node()
    monkeypatch.setattr(command.os, "uname", lambda: type("Uname", (), {"nodename": "my_host"}))

    assert main(["inventory", "-o", "slices"]) == 2
    assert "--node-name is required" in capsys.readouterr().err


def test_the_source_is_closed(node, capsys):
    source = node()
    printed(capsys)

    assert source.closed


def test_settings_of_the_daemon_do_not_matter(node, capsys, monkeypatch):
    node()
    monkeypatch.setenv("FEATURE_GATES", "nonsense")

    printed(capsys)


def test_a_simulated_node_is_shown(capsys, monkeypatch):
    monkeypatch.delenv("NODE_NAME", raising=False)

    found = json.loads(printed(capsys, "--simulated-node", "h200x2", "-o", "json"))

    assert [gpu["productName"] for gpu in found["gpus"]] == ["NVIDIA H200", "NVIDIA H200"]


def test_an_unknown_simulated_node_is_wrong_usage(capsys):
    assert main(["inventory", "--simulated-node", "h200x3000"]) == 2
    assert "h200x3000" in capsys.readouterr().err


def test_a_host_without_nvml_is_told_so(capsys, tmp_path, monkeypatch):
    monkeypatch.delenv("SIMULATED_NODE", raising=False)
    (tmp_path / "libnvidia-ml.so.1").write_bytes(b"no library")

    code = main(["inventory", "--nvidia-driver-root", str(tmp_path), "--container-driver-root", str(tmp_path)])

    assert code == 1
    assert "libnvidia-ml.so.1" in capsys.readouterr().err


# Slices of shared devices.

GATE = "--feature-gates=ConsumableShares=true"


def slices(capsys, *arguments):
    """Device -> its shares, its mode's name for none, ``whole``; and what is said of them."""
    assert main(["inventory", "-o", "slices", "--node-name=node-a", *arguments]) == 0
    said = capsys.readouterr()
    devices = [d for item in yaml.safe_load(said.out)["items"] for d in item["spec"]["devices"]]
    return {d["name"]: _sharing(d) for d in devices}, said.err


def _sharing(device):
    if not device.get("allowMultipleAllocations"):
        return "whole"
    return device["capacity"]["shares"]["value"] if "shares" in device["capacity"] else "shared"


def written(path, *rules):
    path.write_text("rules:\n" + "".join(f"- {{{rule}}}\n" for rule in rules), encoding="utf-8")
    return f"--sharing-profile={path}"


def test_slices_are_shared_as_the_driver_would_share_them(node, capsys, tmp_path):
    node(make_gpu(0), make_gpu(1))
    profile = written(tmp_path / "profile.yaml", "match: {minor: 1}, shares: memory")

    assert slices(capsys, GATE, "--consumable-shares=4", profile) == ({"gpu-0": "4", "gpu-1": "shared"}, "")


def test_slices_follow_the_environment_of_the_drivers_pod(node, capsys, monkeypatch):
    node(make_gpu())
    monkeypatch.setenv("FEATURE_GATES", "ConsumableShares=true")
    monkeypatch.setenv("CONSUMABLE_SHARES", "3")

    assert slices(capsys)[0] == {"gpu-0": "3"}


def test_devices_over_the_ceiling_of_clients_are_left_out_with_the_arithmetic(node, capsys):
    gpu = make_gpu(mig_enabled=True)
    node(gpu, make_gpu(1), mig=tuple(make_mig(gpu, start) for start in range(7)))

    found, said = slices(capsys, GATE, "--consumable-shares=7")

    assert found == {"gpu-1": "7"}
    assert said.count("note: 7 MIG devices x 7 shares = 49 clients") == 1


def test_rule_that_means_nothing_here_is_told(node, capsys, tmp_path):
    node(make_gpu())

    said = slices(capsys, GATE, written(tmp_path / "profile.yaml", "match: {minor: 5}, shares: 2"))[1]

    assert said == "note: sharing profile: rules[0] (line 2) means no device of this node\n"


def test_device_that_live_claims_hold_in_another_way_is_left_out(node, capsys, tmp_path):
    gpu = make_gpu()
    node(gpu, make_gpu(1))
    held(tmp_path, gpu.uuid)

    found, said = slices(capsys, GATE, "--consumable-shares=2", f"--state-dir={tmp_path}")

    assert found == {"gpu-1": "2"}
    assert "device gpu-0 is to be shared (2) and is held whole by live claims (team-a/live)" in said


def held(directory, uuid):
    """Leave the record of a claim that has this GPU whole."""
    store = Store.open(directory / STATE_FILE)
    device = PreparedDevice(
        requests=("gpu",), pool="node-a", device="gpu-0", uuid=uuid, gpu_uuid=uuid, cdi_ids=("k8s.gpu.nvidia.com/x",)
    )
    store.put(
        ClaimRecord(
            claim=claim_ref(name="live"), state=ClaimState.COMPLETED, plan=Plan(devices=(device,)), prepared_at=1.0
        )
    )
    store.close()


def test_records_that_cannot_be_read_end_it(node, capsys, tmp_path):
    node(make_gpu())
    (tmp_path / STATE_FILE).write_bytes(b"no database at all" * 100)

    assert main(["inventory", "-o", "slices", "--node-name=node-a", f"--state-dir={tmp_path}"]) == 1
    assert str(tmp_path / STATE_FILE) in capsys.readouterr().err


def test_labels_of_the_node_are_asked_for_where_a_rule_has_them(node, capsys, tmp_path, monkeypatch):
    node(make_gpu())
    asked = []
    monkeypatch.setattr(offered, "_labels", lambda read, name: asked.append(name) or {"pool": "dev"})

    found, _ = slices(capsys, GATE, written(tmp_path / "profile.yaml", "match: {nodeLabels: {pool: dev}}, shares: 2"))

    assert (found, asked) == ({"gpu-0": "2"}, ["node-a"])


def test_labels_that_are_not_to_be_had_end_it(node, capsys, tmp_path, monkeypatch):
    def refuse(read, name):
        raise ApiError("no answer")

    node(make_gpu())
    monkeypatch.setattr(offered, "_labels", refuse)
    profile = written(tmp_path / "profile.yaml", "match: {nodeLabels: {pool: dev}}, shares: 2")

    assert main(["inventory", "-o", "slices", "--node-name=node-a", GATE, profile]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert "labels of this Node are not known" in said.err
    assert "no answer" in said.err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--consumable-shares=4"], "--consumable-shares requires feature gate ConsumableShares"),
        ([GATE, "--sharing-profile=/nowhere/profile.yaml"], "/nowhere/profile.yaml cannot be read"),
    ],
)
def test_sharing_that_would_end_the_driver_is_wrong_usage(node, capsys, flags, said):
    node(make_gpu())

    assert main(["inventory", "-o", "slices", "--node-name=node-a", *flags]) == 2
    assert said in capsys.readouterr().err
