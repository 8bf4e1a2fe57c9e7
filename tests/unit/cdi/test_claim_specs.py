import logging
import os
from pathlib import Path

import pytest
import yaml

from dra_driver.cdi.claim_specs import ClaimSpecs
from dra_driver.cdi.directory import CdiDirectory
from dra_driver.cdi.spec import validate
from dra_driver.model.errors import CdiError
from dra_driver.ports import CdiSpecs
from dra_driver_api.names import cdi_device_id
from tests.builders import make_gpu, make_mig
from tests.driver_tree import AL2023, VERSION, DriverTree, driver_files, driver_tree

UID = "0e8a1f2c-3b4d-4a5e-9f60-718293a4b5c6"
OTHER_UID = "5f0e2d1c-8a7b-4c6d-9e0f-a1b2c3d4e5f6"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "cdi"


@pytest.fixture
def tree(tmp_path: Path) -> DriverTree:
    return driver_tree(tmp_path, AL2023, gpus=2)


@pytest.fixture
def specs(tree: DriverTree, root: Path) -> ClaimSpecs:
    return ClaimSpecs(CdiDirectory(root), driver_files(tree.roots), lambda: VERSION)


def _file(root: Path, uid: str = UID) -> Path:
    return root / f"k8s.gpu.nvidia.com-claim_{uid}.yaml"


def test_claim_specs_serve_as_the_port(specs: ClaimSpecs) -> None:
    port: CdiSpecs = specs

    port.write(port.plan(UID, [make_gpu(0)]))

    assert port.exists(UID)


def test_planning_writes_nothing(specs: ClaimSpecs, root: Path) -> None:
    specs.plan(UID, [make_gpu(0)])

    assert list(root.iterdir()) == []


def test_file_defines_exactly_the_ids_of_the_claims_devices(specs: ClaimSpecs, root: Path) -> None:
    specs.write(specs.plan(UID, [make_gpu(1), make_gpu(0)]))

    document = yaml.safe_load(_file(root).read_text())
    assert [f"{document['kind']}={device['name']}" for device in document["devices"]] == [
        cdi_device_id(UID, "gpu-0"),
        cdi_device_id(UID, "gpu-1"),
    ]


def test_file_keeps_the_rules_of_cdi(specs: ClaimSpecs, root: Path) -> None:
    specs.write(specs.plan(UID, [make_gpu(0), make_mig(make_gpu(1))]))

    assert validate(yaml.safe_load(_file(root).read_text())) == []


def test_device_of_two_admin_requests_is_one_entry(specs: ClaimSpecs) -> None:
    spec = specs.plan(UID, [make_gpu(0), make_gpu(0)])

    assert spec.device_ids == (cdi_device_id(UID, "gpu-0"),)


def test_mig_devices_of_one_gpu_each_have_the_parents_node(specs: ClaimSpecs) -> None:
    parent = make_gpu(0, mig_enabled=True)

    spec = specs.plan(UID, [make_mig(parent, 0), make_mig(parent, 1)])

    assert [device.edits.device_nodes[0].path for device in spec.devices] == ["/dev/nvidia0", "/dev/nvidia0"]
    assert len({node.path for device in spec.devices for node in device.edits.device_nodes}) == 5


def test_missing_gpu_node_fails_the_claim_and_its_creation_cures_it(
    specs: ClaimSpecs, tree: DriverTree, root: Path
) -> None:
    tree.node("nvidia0").unlink()
    with pytest.raises(CdiError, match=r"^device node /dev/nvidia0 .*is missing"):
        specs.plan(UID, [make_gpu(0)])

    tree.make_nodes("nvidia0")
    specs.write(specs.plan(OTHER_UID, [make_gpu(0)]))

    document = yaml.safe_load(_file(root, OTHER_UID).read_text())
    assert [node["path"] for node in document["devices"][0]["containerEdits"]["deviceNodes"]] == ["/dev/nvidia0"]


def test_missing_common_node_fails_the_claim_and_its_creation_cures_it(specs: ClaimSpecs, tree: DriverTree) -> None:
    tree.node("nvidia-uvm").unlink()
    with pytest.raises(CdiError, match=r"^device node /dev/nvidia-uvm .*is missing"):
        specs.plan(UID, [make_gpu(0)])

    tree.make_nodes("nvidia-uvm")

    common = specs.plan(OTHER_UID, [make_gpu(0)]).common
    assert "/dev/nvidia-uvm" in {node.path for node in common.device_nodes}


def test_change_of_a_node_is_in_the_next_claims_file(tree: DriverTree, root: Path, tmp_path: Path) -> None:
    specs = ClaimSpecs(CdiDirectory(root), driver_files(tree.roots), lambda: VERSION)
    before = specs.plan(UID, [make_gpu(0)]).text

    tree.make_nodes("nvidia-modeset")

    assert "/dev/nvidia-modeset" not in before
    assert "/dev/nvidia-modeset" in specs.plan(UID, [make_gpu(0)]).text


def test_trouble_with_the_drivers_files_is_told_before_a_claim_meets_it(
    specs: ClaimSpecs, tree: DriverTree, caplog: pytest.LogCaptureFixture
) -> None:
    tree.library("libcuda").unlink()

    with caplog.at_level(logging.WARNING):
        specs.look_ahead()

    (record,) = caplog.records
    assert record.message.startswith(f"containers cannot be given GPUs: libcuda.so.{VERSION} of the running driver not")


def test_driver_version_is_asked_for_at_each_plan(tree: DriverTree, root: Path) -> None:
    versions = iter([VERSION, "590.10.01"])
    specs = ClaimSpecs(CdiDirectory(root), driver_files(tree.roots), lambda: next(versions))
    specs.plan(UID, [make_gpu(0)])
    tree.install("590.10.01")

    assert "libcuda.so.590.10.01" in specs.plan(UID, [make_gpu(0)]).text


@pytest.mark.parametrize("uid", ["../x", "a/b", "..", ""])
def test_odd_claim_uid_is_refused_before_anything_is_looked_at(tmp_path: Path, uid: str) -> None:
    tree = DriverTree(tmp_path, AL2023)
    specs = ClaimSpecs(CdiDirectory(tmp_path / "cdi"), driver_files(tree.roots), lambda: VERSION)

    with pytest.raises(CdiError, match="cannot name a CDI spec"):
        specs.plan(uid, [make_gpu(0)])


def test_claim_without_devices_is_refused(specs: ClaimSpecs) -> None:
    with pytest.raises(CdiError, match="devices is empty"):
        specs.plan(UID, [])


def test_removed_spec_is_gone(specs: ClaimSpecs) -> None:
    specs.write(specs.plan(UID, [make_gpu(0)]))

    specs.remove(UID)

    assert not specs.exists(UID)


def test_written_gives_the_devices_of_each_claim(specs: ClaimSpecs) -> None:
    specs.write(specs.plan(UID, [make_gpu(1), make_gpu(0)]))
    specs.write(specs.plan(OTHER_UID, [make_gpu(1)]))

    assert specs.written() == {UID: ("gpu-0", "gpu-1"), OTHER_UID: ("gpu-1",)}


def test_written_reads_files_that_have_the_common_edits_first(specs: ClaimSpecs, root: Path) -> None:
    document = specs.plan(UID, [make_gpu(0)]).document()
    _file(root).write_text("---\n" + yaml.safe_dump(document, sort_keys=True))

    assert specs.written() == {UID: ("gpu-0",)}


@pytest.mark.parametrize(
    "content",
    [
        pytest.param("", id="empty"),
        pytest.param("kind: [", id="cut off"),
        pytest.param("- a\n", id="a list"),
        pytest.param("text\n", id="a text"),
        pytest.param("kind: k8s.gpu.nvidia.com/claim\n", id="no devices"),
        pytest.param("kind: k8s.gpu.nvidia.com/claim\ndevices: [gpu-0]\n", id="device no mapping"),
        pytest.param("kind: k8s.gpu.nvidia.com/claim\ndevices: [{name: 1}]\n", id="name no text"),
        pytest.param("kind: nvidia.com/gpu\ndevices: [{name: '0'}]\n", id="another kind"),
        pytest.param(f"kind: k8s.gpu.nvidia.com/claim\ndevices: [{{name: {OTHER_UID}-gpu-0}}]\n", id="another claim"),
        pytest.param("kind: \x00\n", id="control character"),
    ],
)
def test_written_maps_an_unreadable_file_to_no_devices(
    specs: ClaimSpecs, root: Path, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    _file(root).write_text(content)

    with caplog.at_level(logging.WARNING):
        assert specs.written() == {UID: ()}

    assert str(_file(root)) in caplog.text


def test_written_maps_a_file_of_other_bytes_to_no_devices(specs: ClaimSpecs, root: Path) -> None:
    _file(root).write_bytes(b"\xff\xfe\x00")

    assert specs.written() == {UID: ()}


@pytest.mark.timeout(20)
def test_written_leaves_out_what_is_no_file_and_opens_no_fifo(specs: ClaimSpecs, root: Path) -> None:
    _file(root).mkdir()
    os.mkfifo(_file(root, OTHER_UID))

    assert specs.written() == {}


def test_claims_file_holds_its_spec_until_it_is_changed(specs: ClaimSpecs, root: Path) -> None:
    spec = specs.plan(UID, [make_gpu(0)])
    assert not specs.holds(spec)

    specs.write(spec)
    assert specs.holds(spec)

    _file(root).write_text(spec.text[: len(spec.text) // 2])
    assert not specs.holds(spec)


def test_written_maps_a_huge_file_to_no_devices(specs: ClaimSpecs, root: Path) -> None:
    with _file(root).open("wb") as file:
        file.truncate(1 << 30)

    assert specs.written() == {UID: ()}
