import logging
import os
from collections.abc import Sequence
from pathlib import Path

import jsonschema
import pytest
import yaml

from dra_driver.cdi.claim_specs import ClaimSpecs
from dra_driver.cdi.directory import CdiDirectory
from dra_driver.cdi.hook_program import HOOKS, LIMITS
from dra_driver.cdi.spec import validate
from dra_driver.cdi.tools import EditsSource, HookMode, Tools
from dra_driver.model.errors import CdiError
from dra_driver.ports import CdiSpecs
from dra_driver_api.names import cdi_device_id
from tests.builders import make_gpu, make_mig
from tests.driver_tree import AL2023, BOTTLEROCKET_OLD, GPU_OPERATOR, VERSION, DriverTree, driver_files, driver_tree
from tests.unit.cdi import fake_tools
from tests.unit.cdi.documents import SCHEMA

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


# Memory limits.


class Hooked:
    """Specs on a host whose nvidia-cdi-hook has these hooks."""

    def __init__(
        self, tree: DriverTree, base: Path, subcommands: Sequence[str], hooks: HookMode = HookMode.AUTO
    ) -> None:
        self.program = fake_tools.hook(tree.path("usr/bin/nvidia-cdi-hook"), subcommands)
        tools = Tools(shared=base / "plugin", edits=EditsSource.BUILTIN, hooks=hooks, own=())
        self.specs = ClaimSpecs(CdiDirectory(base / "cdi"), driver_files(tree.roots, tools), lambda: VERSION)


@pytest.fixture
def hooked(tree: DriverTree, tmp_path: Path) -> Hooked:
    return Hooked(tree, tmp_path, (*HOOKS, LIMITS))


def test_limited_gpu_has_the_limit_in_mebibytes_and_the_hook_that_sets_it(hooked: Hooked) -> None:
    spec = hooked.specs.plan(UID, [make_gpu(0), make_gpu(1)], {"gpu-1": 20 << 30})

    free, limited = (device["containerEdits"] for device in spec.document()["devices"])
    assert free.keys() == {"deviceNodes"}
    assert limited["env"] == ["NVIDIA_GPU_MEMORY_REQUEST=20480", "NVIDIA_GPU_MEMORY_LIMIT=20480"]
    assert limited["hooks"] == [
        {
            "hookName": "createRuntime",
            "path": "/usr/bin/nvidia-cdi-hook",
            "args": [
                "nvidia-cdi-hook",
                "apply-cuda-memory-limits",
                "--driver-root",
                "/",
                "--gpu-id",
                make_gpu(1).uuid,
            ],
            "env": ["NVIDIA_CTK_DEBUG=false"],
        }
    ]


def test_spec_with_limits_keeps_the_rules_of_cdi_as_written(hooked: Hooked) -> None:
    spec = hooked.specs.plan(UID, [make_gpu(0), make_gpu(1)], {"gpu-0": 1 << 20, "gpu-1": 1 << 20})

    document = yaml.safe_load(spec.text)
    assert validate(document) == []
    jsonschema.Draft202012Validator(SCHEMA).validate(document)
    assert document == spec.document()


def test_names_of_limited_devices_are_read_back_for_recovery(hooked: Hooked) -> None:
    hooked.specs.write(hooked.specs.plan(UID, [make_gpu(0)], {"gpu-0": 1 << 30}))

    assert hooked.specs.written() == {UID: ("gpu-0",)}


def test_claim_without_limits_is_as_it_was(hooked: Hooked) -> None:
    assert "createRuntime" not in hooked.specs.plan(UID, [make_gpu(0)]).text


def test_limits_can_be_set_with_a_program_that_has_the_hook(hooked: Hooked) -> None:
    assert hooked.specs.why_no_memory_limits(VERSION) == ""


@pytest.mark.parametrize(
    ("subcommands", "mode", "why"),
    [
        pytest.param(HOOKS, HookMode.AUTO, "not known to have the hook apply-cuda-memory-limits", id="older program"),
        pytest.param((*HOOKS, LIMITS), HookMode.NONE, "containers are set up without hooks", id="no hooks"),
    ],
)
def test_limits_that_cannot_be_set_are_told_and_never_left_out(
    tree: DriverTree, tmp_path: Path, subcommands: Sequence[str], mode: HookMode, why: str
) -> None:
    specs = Hooked(tree, tmp_path, subcommands, mode).specs

    assert why in specs.why_no_memory_limits(VERSION)
    with pytest.raises(CdiError, match=why):
        specs.plan(UID, [make_gpu(0)], {"gpu-0": 1 << 30})
    specs.plan(UID, [make_gpu(0)])


def test_driver_files_that_are_missing_are_a_reason_not_to_promise_limits(hooked: Hooked) -> None:
    why = hooked.specs.why_no_memory_limits("1.2.3")
    assert "libcuda.so.1.2.3 and libnvidia-ml.so.1.2.3 of the running driver not found" in why


def test_library_that_the_hook_would_not_find_is_a_reason_not_to_promise_limits(tmp_path: Path) -> None:
    specs = Hooked(driver_tree(tmp_path, BOTTLEROCKET_OLD), tmp_path, (*HOOKS, LIMITS)).specs

    assert "would not find libnvidia-ml.so.1 under /" in specs.why_no_memory_limits(VERSION)


def test_program_that_cannot_be_asked_is_not_taken_to_set_limits(tmp_path: Path) -> None:
    tree = driver_tree(tmp_path, GPU_OPERATOR)
    given = Path("/usr/local/nvidia/toolkit/nvidia-cdi-hook")
    tools = Tools(shared=tmp_path / "plugin", edits=EditsSource.BUILTIN, hook_path=given, own=())
    specs = ClaimSpecs(CdiDirectory(tmp_path / "cdi"), driver_files(tree.roots, tools), lambda: VERSION)

    assert f"{given} is not known to have the hook" in specs.why_no_memory_limits(VERSION)
