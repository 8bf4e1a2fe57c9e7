"""A real H200: what its nvidia-ctk gave, beside what our search gives for the files that it had (tests/hardware)."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_driver.cdi import builtin
from dra_driver.cdi.hook_program import HOOKS, HookProgram
from dra_driver.cdi.layout import FileEdits, hook_free, with_hooks
from dra_driver.devices.elf import shared_object
from dra_driver.hostfs import DriverRoots

RECORDED = Path(__file__).parents[2] / "hardware"
DRIVER_ROOT = Path("/usr/local/nvidia")
VERSION = "580.159.04"


@pytest.fixture
def roots(tmp_path: Path) -> DriverRoots:
    """The host's driver root, rebuilt from the list of its files."""
    listed = [Path(line) for line in (RECORDED / "h200-driver-files.txt").read_text().splitlines()]
    paths = [path.relative_to(DRIVER_ROOT) for path in listed if DRIVER_ROOT in path.parents]
    names = {str(path) for path in paths}
    for path in paths:
        if not any(name.startswith(f"{path}/") for name in names):
            _put(tmp_path, path, names)
    return DriverRoots(
        driver_root=DRIVER_ROOT,
        dev_root=Path("/"),
        container_driver_root=tmp_path,
        container_dev_root=Path("/"),
    )


def _put(root: Path, path: Path, names: set[str]) -> None:
    """A library with the SONAME that the links beside it tell, a link, or a file with a line of text."""
    there = root / path
    there.parent.mkdir(parents=True, exist_ok=True)
    stem, _, end = path.name.partition(".so")
    numbers = sorted(name for name in names if name.startswith(f"{path.parent}/{stem}.so.") and VERSION not in name)
    if end == f".{VERSION}":
        there.write_bytes(shared_object(Path(numbers[0]).name if numbers else path.name))
    elif ".so" in path.name and f"{path.parent}/{stem}.so.{VERSION}" in names:
        there.symlink_to(Path(numbers[0]).name if not end and numbers else f"{stem}.so.{VERSION}")
    else:
        there.write_text("driver\n")


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    """Common edits of nvidia-ctk 1.20.2."""
    edits: dict[str, Any] = yaml.safe_load((RECORDED / "h200-nvidia-ctk-1.20.2-cdi.yaml").read_text())["containerEdits"]
    return edits


@pytest.fixture
def ours(roots: DriverRoots) -> FileEdits:
    program = HookProgram("/usr/bin/nvidia-cdi-hook", frozenset(HOOKS))
    return with_hooks(builtin.find(roots, VERSION), program, roots.on_host)


def test_mounts_differ_only_in_what_the_docs_list(recorded: dict[str, Any], ours: FileEdits) -> None:
    nvidias = {(each["containerPath"], each["hostPath"], *each["options"]) for each in recorded["mounts"]}
    found = {(each.container_path, each.host_path, *each.options) for each in ours.mounts}

    programs = (
        "nvidia-cuda-mps-control",
        "nvidia-cuda-mps-server",
        "nvidia-debugdump",
        "nvidia-persistenced",
        "nvidia-smi",
    )
    assert {path for path, *_ in nvidias - found} == {f"/bin/{name}" for name in programs}
    assert {path for path, *_ in found - nvidias} == {
        *(f"/usr/bin/{name}" for name in programs),
        f"/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin",
        f"/lib/firmware/nvidia/{VERSION}/gsp_tu10x.bin",
        "/etc/vulkan/icd.d/nvidia_icd.json",
        "/etc/vulkan/implicit_layer.d/nvidia_layers.json",
        "/usr/share/glvnd/egl_vendor.d/10_nvidia.json",
    }
    assert len(nvidias & found) == 27


def _links(hooks: list[tuple[str, ...]]) -> set[str]:
    return {link for args in hooks if args[1] == "create-symlinks" for link in args[3::2]}


def test_hooks_and_links_are_the_same(recorded: dict[str, Any], ours: FileEdits) -> None:
    nvidias = [tuple(each["args"]) for each in recorded["hooks"]]
    found = [hook.args for hook in ours.hooks]

    assert _links(found) == _links(nvidias)
    assert {args for args in found if args[1] != "create-symlinks"} == {
        args for args in nvidias if args[1] != "create-symlinks"
    }
    assert {(each["hookName"], each["path"], *each["env"]) for each in recorded["hooks"]} == {
        (hook.stage, hook.path, *hook.env) for hook in ours.hooks
    }


def test_environment_is_the_same(recorded: dict[str, Any], ours: FileEdits) -> None:
    assert [str(variable) for variable in ours.env] == recorded["env"]


@pytest.mark.parametrize("way", ["hooks", "hook-free"])
def test_mounts_are_those_that_cuda_worked_with_on_the_card(roots: DriverRoots, way: str) -> None:
    finds = builtin.find(roots, VERSION)
    program = HookProgram("/usr/bin/nvidia-cdi-hook", frozenset(HOOKS))
    hooked = with_hooks(finds, program, roots.on_host)
    edits = hooked if way == "hooks" else hook_free(finds, roots.on_host, "x86_64")
    run = json.loads((RECORDED / "h200-run.json").read_text())
    mounted = yaml.safe_load(run["cdi"][way])["containerEdits"]["mounts"]
    assert {(mount.container_path, mount.host_path) for mount in edits.mounts} == {
        (each["containerPath"], each["hostPath"]) for each in mounted
    }


def test_libraries_that_cuda_loads_have_their_names_without_hooks(roots: DriverRoots) -> None:
    edits = hook_free(builtin.find(roots, VERSION), roots.on_host, "x86_64")

    hosts = {mount.container_path: mount.host_path for mount in edits.mounts}
    for directory in ("/usr/local/nvidia/lib64", "/usr/lib64", "/usr/lib/x86_64-linux-gnu"):
        assert hosts[f"{directory}/libcuda.so.1"] == f"/usr/local/nvidia/lib64/libcuda.so.{VERSION}"
        assert hosts[f"{directory}/libnvidia-nvvm.so.4"] == f"/usr/local/nvidia/lib64/libnvidia-nvvm.so.{VERSION}"
        assert f"{directory}/libnvidia-gpucomp.so.{VERSION}" in hosts
