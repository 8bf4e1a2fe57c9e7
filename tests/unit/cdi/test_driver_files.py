import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from dra_driver.cdi.driver_files import DriverFiles
from dra_driver.cdi.spec import Edits
from dra_driver.model.errors import CdiError
from tests.driver_tree import (
    AL2023,
    BOTTLEROCKET_OLD,
    GPU_OPERATOR,
    LAYOUTS,
    USR_LOCAL,
    VERSION,
    DriverTree,
    Layout,
    driver_files,
    driver_tree,
)

NODES = ["nvidia-uvm", "nvidia-uvm-tools", "nvidiactl"]


def _files(tree: DriverTree) -> DriverFiles:
    return driver_files(tree.roots)


def _mounts(edits: Edits) -> dict[str, str]:
    """Container path -> host path."""
    return {mount.container_path: mount.host_path for mount in edits.mounts}


def _seen(tree: DriverTree, host_path: str) -> Path:
    return tree.root / Path(host_path).relative_to(tree.roots.driver_root)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_every_host_path_exists_whatever_the_layout(tmp_path: Path, layout: Layout) -> None:
    tree = driver_tree(tmp_path, layout)

    mounts = _mounts(_files(tree).common(VERSION))

    assert len(mounts) > 40
    assert mounts.pop("/var/run/nvidia-container-devices/void") == "/dev/null"
    assert [path for path in mounts.values() if not _seen(tree, path).is_file()] == []


@pytest.mark.parametrize(
    ("layout", "host_path"),
    [
        pytest.param(AL2023, "/usr/bin/nvidia-smi", id="al2023"),
        pytest.param(BOTTLEROCKET_OLD, "/usr/libexec/nvidia/tesla/bin/nvidia-smi", id="bottlerocket-old"),
        pytest.param(GPU_OPERATOR, "/run/nvidia/driver/usr/bin/nvidia-smi", id="gpu-operator"),
        pytest.param(USR_LOCAL, "/usr/local/bin/nvidia-smi", id="usr-local"),
    ],
)
def test_program_is_in_usr_bin_wherever_the_host_has_it(tmp_path: Path, layout: Layout, host_path: str) -> None:
    assert _mounts(_files(driver_tree(tmp_path, layout)).common(VERSION))["/usr/bin/nvidia-smi"] == host_path


def test_driver_root_and_dev_root_are_apart(tmp_path: Path) -> None:
    edits = _files(driver_tree(tmp_path, USR_LOCAL)).common(VERSION)

    assert {node.host_path for node in edits.device_nodes} == {f"/dev/{name}" for name in NODES}
    assert {Path(path).parts[:3] for path in _mounts(edits).values() if path != "/dev/null"} == {("/", "usr", "local")}


def test_dev_root_of_a_driver_container_is_in_the_host_paths(tmp_path: Path) -> None:
    edits = _files(driver_tree(tmp_path, GPU_OPERATOR)).common(VERSION)

    assert {node.host_path for node in edits.device_nodes} == {f"/run/nvidia/driver/dev/{name}" for name in NODES}
    assert {node.path for node in edits.device_nodes} == {f"/dev/{name}" for name in NODES}


def test_firmware_of_the_driver_version_is_in_lib_firmware(tree: DriverTree) -> None:
    mounts = _mounts(_files(tree).common(VERSION))

    assert mounts[f"/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin"] == (
        f"/usr/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin"
    )


def test_files_are_read_only_and_without_devices(tree: DriverTree) -> None:
    mounts = _files(tree).common(VERSION).mounts

    options = {mount.options for mount in mounts if mount.host_path != "/dev/null"}
    assert options == {("ro", "nosuid", "nodev", "rbind", "rprivate")}


def test_sockets_that_are_there_are_mounted_writable(tree: DriverTree, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = tree.root / "run/nvidia-persistenced"
    directory.mkdir(parents=True)
    monkeypatch.chdir(directory)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")

    found = {mount.container_path: mount for mount in _files(tree).common(VERSION).mounts}
    socket_mount = found["/run/nvidia-persistenced/socket"]
    assert socket_mount.host_path == "/run/nvidia-persistenced/socket"
    assert socket_mount.options == ("nosuid", "nodev", "rbind", "rprivate", "noexec")
    assert "/run/nvidia-fabricmanager/socket" not in found


def test_environment_names_the_directory_of_libcuda_and_keeps_other_runtimes_out(tree: DriverTree) -> None:
    environment = [str(variable) for variable in _files(tree).common(VERSION).env]

    assert environment[-2:] == ["NVIDIA_CTK_LIBCUDA_DIR=/usr/local/nvidia/lib64", "NVIDIA_VISIBLE_DEVICES=void"]


def test_only_the_running_drivers_files_are_taken_when_two_are_installed(tree: DriverTree) -> None:
    tree.install("570.86.15")
    tree.install(VERSION)

    hosts = set(_mounts(_files(tree).common(VERSION)).values())
    assert [path for path in hosts if "570.86.15" in path] == []
    assert f"/usr/lib64/libcuda.so.{VERSION}" in hosts


def test_modeset_node_is_taken_when_it_is_there(tree: DriverTree) -> None:
    tree.make_nodes("nvidia-modeset")

    nodes = {node.path: (node.major, node.minor) for node in _files(tree).common(VERSION).device_nodes}
    assert nodes["/dev/nvidia-modeset"] == (195, 254)


@pytest.mark.parametrize("name", ["libcuda", "libnvidia-ml"])
def test_missing_required_library_is_named_with_the_directories(tree: DriverTree, name: str) -> None:
    tree.library(name).unlink()

    with pytest.raises(CdiError, match=rf"^{name}\.so\.{VERSION} .*/usr/lib64, /usr/lib/x86_64-linux-gnu, "):
        _files(tree).common(VERSION)


def test_required_library_of_another_version_is_mentioned(tree: DriverTree) -> None:
    with pytest.raises(CdiError, match=rf"libcuda\.so\.999\.1 .*found there: libcuda\.so\.{VERSION}"):
        _files(tree).common("999.1")


def test_required_library_that_is_a_dead_link_is_missing(tree: DriverTree) -> None:
    tree.link(f"usr/lib64/libcuda.so.{VERSION}", "gone/libcuda")

    with pytest.raises(CdiError, match=rf"^libcuda\.so\.{VERSION} "):
        _files(tree).common(VERSION)


@pytest.mark.parametrize("name", ["nvidiactl", "nvidia-uvm"])
def test_missing_required_node_is_named(tree: DriverTree, name: str) -> None:
    tree.node(name).unlink()

    with pytest.raises(CdiError, match=rf"^device node /dev/{name} .*is missing"):
        _files(tree).common(VERSION)


def test_text_of_a_missing_library_fits_an_event(tmp_path: Path) -> None:
    with pytest.raises(CdiError) as caught:
        _files(DriverTree(tmp_path, GPU_OPERATOR).with_nodes()).common(VERSION)

    assert len(str(caught.value)) < 1000
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("version", ["", "580", "*", "../580.1", "580.159.04\n"])
def test_driver_version_that_is_none_is_refused(tree: DriverTree, version: str) -> None:
    with pytest.raises(CdiError, match=r"^driver version: found "):
        _files(tree).common(version)


def test_result_is_kept_as_long_as_nothing_changes(tree: DriverTree) -> None:
    files = _files(tree)

    assert files.common(VERSION) is files.common(VERSION)


def _remove_library(tree: DriverTree) -> None:
    tree.library("libnvidia-encode").unlink()


def _replace_library(tree: DriverTree) -> None:
    fresh = tree.add_library("usr/lib64/.fresh", "libcuda.so.1")
    os.replace(fresh, tree.library("libcuda"))


def _remove_program(tree: DriverTree) -> None:
    (tree.root / "usr/bin/nvidia-smi").unlink()


def _add_library(tree: DriverTree) -> None:
    tree.add_library(f"usr/lib64/libnvidia-new.so.{VERSION}")


def _add_modeset_node(tree: DriverTree) -> None:
    tree.make_nodes("nvidia-modeset")


def _remove_tools_node(tree: DriverTree) -> None:
    tree.node("nvidia-uvm-tools").unlink()


def _add_mps(tree: DriverTree) -> None:
    (tree.root / "tmp/nvidia-mps").mkdir(parents=True)


@pytest.mark.parametrize(
    "change",
    [
        _remove_library,
        _replace_library,
        _remove_program,
        _add_library,
        _add_modeset_node,
        _remove_tools_node,
        _add_mps,
    ],
)
def test_result_is_made_anew_when_a_file_changes(tree: DriverTree, change: Callable[[DriverTree], None]) -> None:
    files = _files(tree)
    before = files.common(VERSION)

    change(tree)

    assert files.common(VERSION) is not before
    assert files.common(VERSION) == _files(tree).common(VERSION)


def test_use_of_a_device_node_does_not_drop_the_result(
    tree: DriverTree, make_character_device: Callable[..., None]
) -> None:
    make_character_device(tree.node("nvidiactl"), 195, 255)
    files = _files(tree)
    before = files.common(VERSION)

    os.utime(tree.node("nvidiactl"))

    assert files.common(VERSION) is before


def test_required_node_that_vanished_is_noticed_though_a_result_was_kept(tree: DriverTree) -> None:
    files = _files(tree)
    files.common(VERSION)

    tree.node("nvidia-uvm").unlink()

    with pytest.raises(CdiError, match=r"^device node /dev/nvidia-uvm "):
        files.common(VERSION)


def test_failure_is_not_kept(tree: DriverTree) -> None:
    files = _files(tree)
    tree.node("nvidiactl").unlink()
    with pytest.raises(CdiError):
        files.common(VERSION)

    tree.make_nodes("nvidiactl")

    assert [node.path for node in files.common(VERSION).device_nodes] == [f"/dev/{name}" for name in NODES]


def test_new_driver_version_is_looked_up_afresh(tree: DriverTree) -> None:
    files = _files(tree)
    files.common(VERSION)
    tree.install("590.10.01")

    hosts = set(_mounts(files.common("590.10.01")).values())
    assert "/usr/lib64/libcuda.so.590.10.01" in hosts
    assert f"/usr/lib64/libcuda.so.{VERSION}" not in hosts
