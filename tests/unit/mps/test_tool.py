"""NVIDIA's programs: found under the driver root, run with nothing but what they need."""

import shutil
from pathlib import Path

import pytest

from dra_driver.model.errors import MpsError
from dra_driver.mps.tool import Control, MpsTool
from tests.unit.mps.node import UUIDS, daemon


def control(node):
    node.folder.make()
    tool = MpsTool(node.root)
    return Control(tool.programs(), node.folder.pipe, node.folder.log, node.folder.path / "lib", node.folder.path)


@pytest.mark.parametrize(
    "path", ["usr/bin/nvidia-cuda-mps-control", "usr/bin/nvidia-cuda-mps-server", "usr/lib64/libcuda.so.1"]
)
def test_what_is_missing_is_named_with_where_it_was_looked_for(node, path):
    (node.root / path).unlink()

    with pytest.raises(MpsError, match=rf"{Path(path).name} is not there \(searched {node.root}: .*"):
        MpsTool(node.root).programs()


def test_libraries_of_the_driver_are_linked_and_no_others(node, tmp_path):
    (node.root / "usr/lib64/libc.so.6").write_text("the host's own")
    folder = tmp_path / "lib"

    MpsTool(node.root).link_libraries(folder)

    names = {path.name for path in folder.iterdir()}
    assert {"libcuda.so.1", "libnvidia-ml.so.1", "libnvidia-ptxjitcompiler.so.1"} <= names
    assert "libc.so.6" not in names
    assert (folder / "libcuda.so.1").resolve() == node.root / "usr/lib64/libcuda.so.580.159.04"


def test_links_are_those_of_the_driver_that_is_there_now(node, tmp_path):
    folder = tmp_path / "lib"
    MpsTool(node.root).link_libraries(folder)
    (node.root / "usr/lib64/libcuda.so.580.159.04").rename(node.root / "usr/lib64/libcuda.so.590.1")
    (node.root / "usr/lib64/libcuda.so.1").unlink()
    (node.root / "usr/lib64/libcuda.so.1").symlink_to("libcuda.so.590.1")

    MpsTool(node.root).link_libraries(folder)

    assert (folder / "libcuda.so.1").resolve().name == "libcuda.so.590.1"
    assert not (folder / "libcuda.so.580.159.04").is_symlink()


def test_library_whose_link_leads_to_another_folder_is_found_by_its_name(node, tmp_path):
    elsewhere = node.root / "opt"
    elsewhere.mkdir()
    shutil.move(node.root / "usr/lib64/libcuda.so.580.159.04", elsewhere / "libcuda.so.580.159.04")
    (node.root / "usr/lib64/libcuda.so.1").unlink()
    (node.root / "usr/lib64/libcuda.so.1").symlink_to("/opt/libcuda.so.580.159.04")

    MpsTool(node.root).link_libraries(tmp_path / "lib")

    assert (tmp_path / "lib/libcuda.so.1").resolve() == elsewhere / "libcuda.so.580.159.04"


def test_daemon_gets_devices_folders_and_paths_and_nothing_of_ours(node, monkeypatch):
    monkeypatch.setenv("LD_PRELOAD", "ours")

    environment = control(node).environment(daemon())

    assert environment == {
        "PATH": f"{node.root}/usr/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "LD_LIBRARY_PATH": str(node.folder.path / "lib"),
        "CUDA_MPS_PIPE_DIRECTORY": str(node.folder.pipe),
        "CUDA_MPS_LOG_DIRECTORY": str(node.folder.log),
        "CUDA_VISIBLE_DEVICES": ",".join(UUIDS),
        "DRA_DRIVER_MPS_FOLDER": str(node.folder.path),
    }


def test_daemon_for_several_users_is_told_so(node):
    assert control(node).command(daemon(multi_user=True))[1:] == ["-f", "-M"]
    assert control(node).command(daemon())[1:] == ["-f"]


def test_command_without_a_daemon_tells_what_the_program_said(node):
    with pytest.raises(MpsError, match=r'"quit" failed with exit code 1: Cannot find MPS control daemon process'):
        control(node).ask("quit", 20)


def test_command_that_cannot_be_run_names_the_program(node):
    found = control(node)
    found.programs.control.chmod(0o644)

    with pytest.raises(MpsError, match="nvidia-cuda-mps-control cannot be run: Permission denied"):
        found.ask("quit", 20)


def test_command_that_does_not_end_is_ended(node):
    found = control(node)
    found.programs.control.write_text("#!/bin/sh\nexec sleep 600\n")

    with pytest.raises(MpsError, match=r'"quit" was ended: no end within 0.2 s'):
        found.ask("quit", 0.2)
