"""Field cases on what containers get: whole CDI files in the right directory, with paths that are there."""

import argparse
import errno
import os
import stat
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_driver import settings
from dra_driver.cdi.claim_specs import ClaimSpecs
from dra_driver.cdi.directory import CdiDirectory
from dra_driver.cdi.kernel_devices import KernelDevices
from dra_driver.hardware import Hardware
from dra_driver.model.errors import DriverNotReady, SettingError
from tests.builders import make_gpu, result
from tests.cases.driver import Driver, nothing_left
from tests.driver_tree import AL2023, USR_LOCAL, VERSION, DriverTree, driver_files, driver_tree

Json = dict[str, Any]
COMMON = ("nvidiactl", "nvidia-uvm")


def nodes(spec: Json) -> set[str]:
    edits = [spec["containerEdits"], *(device["containerEdits"] for device in spec["devices"])]
    return {found["path"] for edit in edits for found in edit.get("deviceNodes") or []}


# 41


@pytest.mark.parametrize("missing", ["nvidia0", *COMMON])
def test_missing_device_node_is_made_for_the_first_claim(driver: Driver, missing: str) -> None:
    (driver.tree / "dev" / missing).unlink()
    claim = driver.claim("first-on-node", [result()])
    driver.prepare(claim)
    assert (driver.tree / "dev" / missing).exists()
    assert {f"/dev/{name}" for name in ("nvidia0", *COMMON)} < nodes(driver.spec(claim))


@pytest.mark.parametrize("missing", ["nvidia0", *COMMON])
def test_missing_device_node_fails_the_claim_by_its_path_where_none_may_be_made(stopped: Driver, missing: str) -> None:
    stopped.start("--device-nodes=require")
    (stopped.tree / "dev" / missing).unlink()
    text = stopped.refusal(stopped.claim("first-on-node", [result()]))
    assert f"/dev/{missing} is missing, and with --device-nodes=require the driver makes none: " in text
    assert nothing_left(stopped)


def test_read_only_dev_fails_the_claim_with_the_command_to_type(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object, **more: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    (driver.tree / "dev/nvidia0").unlink()
    monkeypatch.setattr(os, "mknod", refuse)
    text = driver.refusal(driver.claim("first-on-node", [result()]))
    assert "mknod: Read-only file system" in text
    assert f"mknod -m 666 {driver.tree}/dev/nvidia0 c 195 0" in text
    assert nothing_left(driver)


def test_nodes_that_were_made_later_are_all_in_the_next_claims_file(stopped: Driver) -> None:
    driver = stopped
    driver.start("--device-nodes=require")
    kept = driver.directory / "kept"
    kept.mkdir()
    for name in ("nvidia0", *COMMON):
        (driver.tree / "dev" / name).rename(kept / name)
    first = driver.claim("first-on-node", [result()])
    driver.refusal(first)
    for name in ("nvidia0", *COMMON):
        (kept / name).rename(driver.tree / "dev" / name)
    for claim in (first, driver.claim("second", [result("gpu-1")])):
        driver.prepare(claim)
        assert {f"/dev/{name}" for name in COMMON} < nodes(driver.spec(claim))
    assert "/dev/nvidia0" in nodes(driver.spec(first))


def test_driver_that_was_replaced_by_another_ends_this_process_with_the_reason(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert driver.app is not None
    driver.app.check_driver()
    monkeypatch.setattr(driver.app._hardware, "outlived", lambda: "libnvidia-ml.so.580 does not fit")
    with pytest.raises(DriverNotReady, match="does not fit"):
        driver.app.check_driver()


def test_real_node_gets_its_nodes_by_the_device_table_that_the_settings_name(tmp_path: Path) -> None:
    version = KernelDevices().driver_version() or VERSION
    tree = DriverTree(tmp_path, AL2023)
    tree.install(version)
    try:
        os.mknod(tmp_path / "probe", stat.S_IFCHR | 0o600, os.makedev(1, 3))
    except OSError as error:
        pytest.skip(f"device nodes cannot be made here: {error.strerror}")
    (tmp_path / "devices").write_text("Character devices:\n195 nvidia\n508 nvidia-uvm\n")
    flags = (
        "--node-name=node-a",
        f"--container-driver-root={tree.root}",
        f"--container-dev-root={tree.dev_root}",
        f"--alt-proc-devices-path={tmp_path / 'devices'}",
        f"--state-dir={tmp_path / 'state'}",
    )
    parser = argparse.ArgumentParser()
    settings.add_options(parser)
    hardware = Hardware(settings.load(parser.parse_args(flags), {}))
    made = hardware.files.common(version).device_nodes
    assert [(node.path, node.major, node.minor) for node in made] == [
        ("/dev/nvidia-uvm", 508, 0),
        ("/dev/nvidia-uvm-tools", 508, 1),
        ("/dev/nvidiactl", 195, 255),
    ]


# 44


def test_missing_cdi_directory_is_made_and_gets_the_files(stopped: Driver) -> None:
    stopped.cdi = stopped.directory / "var" / "cdi" / "dynamic"
    stopped.start()
    claim = stopped.claim("training", [result()])
    stopped.prepare(claim)
    assert stopped.files() == [f"k8s.gpu.nvidia.com-claim_{claim.uid}.yaml"]


def test_cdi_directory_that_cannot_be_written_ends_the_start_naming_it(stopped: Driver) -> None:
    stopped.cdi = Path("/proc/self/fdinfo")  # where not even root can make a file
    with pytest.raises(SettingError, match=r"--cdi-root \(CDI_ROOT\): found /proc/self/fdinfo, cannot write there"):
        stopped.start()


def test_answer_has_exactly_the_ids_that_the_file_defines(driver: Driver) -> None:
    claim = driver.claim("training", [result("gpu-1", "b"), result("gpu-0", "a")])
    answered = [cdi_id for device in driver.prepare(claim) for cdi_id in device.cdi_device_ids]
    spec = driver.spec(claim)
    assert sorted(answered) == [f"{spec['kind']}={device['name']}" for device in spec["devices"]]
    assert answered == [f"k8s.gpu.nvidia.com/claim={claim.uid}-gpu-{minor}" for minor in (1, 0)]


# 46


def test_card_that_two_admin_requests_got_is_one_device_of_the_file(driver: Driver) -> None:
    results = [result(request=request, adminAccess=True) for request in ("a", "b")]
    claim = driver.claim("monitor", results)
    devices = driver.prepare(claim)
    (entry,) = driver.spec(claim)["devices"]
    wanted = [f"k8s.gpu.nvidia.com/claim={entry['name']}"]
    assert [list(device.cdi_device_ids) for device in devices] == [wanted, wanted]
    assert [list(device.request_names) for device in devices] == [["a"], ["b"]]


# 47


def test_driver_below_usr_local_is_mounted_from_there_and_nodes_come_from_dev(tmp_path: Path) -> None:
    tree = driver_tree(tmp_path, USR_LOCAL)
    specs = ClaimSpecs(CdiDirectory(tmp_path / "cdi"), driver_files(tree.roots), lambda: VERSION)
    spec = yaml.safe_load(specs.plan("a1b2", [make_gpu(0)]).text)
    hosts = {mount["containerPath"]: mount["hostPath"] for mount in spec["containerEdits"]["mounts"]}
    assert hosts["/usr/bin/nvidia-smi"] == "/usr/local/bin/nvidia-smi"
    assert hosts.pop("/var/run/nvidia-container-devices/void") == "/dev/null"
    seen = [tree.root / Path(path).relative_to("/usr/local") for path in hosts.values()]
    assert [path for path in seen if not path.exists()] == []
    (node,) = spec["devices"][0]["containerEdits"]["deviceNodes"]
    assert (node["path"], node.get("hostPath", node["path"])) == ("/dev/nvidia0", "/dev/nvidia0")
