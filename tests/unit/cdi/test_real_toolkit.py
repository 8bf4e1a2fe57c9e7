"""NVIDIA's own programs: their generator beside our search, their hooks on a container, and loaders that load.

``make toolkit`` builds the programs; a C compiler makes the libraries. Hooks and mounts need root.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from dra_driver.cdi.hook_program import HOOKS, HookFinder
from dra_driver.cdi.host_programs import Toolbox
from dra_driver.cdi.spec import Edits
from dra_driver.cdi.tools import EditsSource, HookMode, Tools
from dra_driver.model.errors import CdiError
from hack.cluster import build
from tests.driver_tree import (
    AL2023,
    BOTTLEROCKET,
    BOTTLEROCKET_OLD,
    DEBIAN,
    GKE,
    GPU_OPERATOR,
    LAYOUTS,
    USR_LOCAL,
    USR_LOCAL_NVIDIA,
    VERSION,
    DriverTree,
    Layout,
    driver_files,
)
from tests.unit.cdi import bundle, compiled

pytestmark = [pytest.mark.toolkit, pytest.mark.timeout(120)]

BINARIES = ("cuda-mps-control", "cuda-mps-server", "debugdump", "persistenced", "smi")
LOADED = ("libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1", "libnvidia-ptxjitcompiler.so.1", "libnvoptix.so.1")
FULL_NAME = f"libnvidia-eglcore.so.{VERSION}"

NVIDIA = (EditsSource.NVIDIA_CTK, HookMode.NVIDIA_CDI_HOOK)
OURS = (EditsSource.BUILTIN, HookMode.NVIDIA_CDI_HOOK)
HOOK_FREE = (EditsSource.BUILTIN, HookMode.NONE)


@pytest.fixture(scope="module")
def programs() -> Path:
    """The folder of nvidia-ctk and nvidia-cdi-hook."""
    found = shutil.which("nvidia-ctk")
    folder = Path(found).parent if found else build.cache() / build.tool_product("nvidia").folder
    assert (folder / "nvidia-cdi-hook").exists(), "build them first: make toolkit"
    return folder


class Host:
    """A host of a kind, and a driver's process on it whose image has NVIDIA's programs."""

    def __init__(self, base: Path, layout: Layout, own: Path) -> None:
        self.base = base
        self.tree: DriverTree = compiled.compiled_tree(base, layout)
        self.own = own
        driver_root = str(self.tree.roots.driver_root)
        self.seen = {"/dev/null": "/dev/null", str(base): str(base), driver_root: str(self.tree.root)}

    def edits(self, source: EditsSource, hooks: HookMode) -> Edits:
        tools = Tools(shared=self.base / "plugins", own=(self.own,), edits=source, hooks=hooks)
        return driver_files(self.tree.roots, tools).common(VERSION)

    def facts(self, source: EditsSource, hooks: HookMode) -> set[tuple[str, ...]]:
        """Mounts (with the file behind them), links, other calls of hooks, environment: one tuple each."""
        edits = self.edits(source, hooks)
        facts = {("mount", each.container_path, self._file(each.host_path), *each.options) for each in edits.mounts}
        for hook in edits.hooks:
            if hook.args[1] == "create-symlinks":
                facts |= {("link", *text.split("::")[::-1]) for text in hook.args[3::2]}
            else:
                facts.add(("hook", hook.stage, hook.path, *hook.args, *hook.env))
        return facts | {("env", str(each)) for each in edits.env}

    def _file(self, host_path: str) -> str:
        if host_path == "/dev/null":
            return host_path
        seen = self.tree.root / Path(host_path).relative_to(self.tree.roots.driver_root)
        return str(seen.resolve().relative_to(self.tree.root))


@pytest.fixture
def host(tmp_path: Path, programs: Path) -> Callable[[Layout], Host]:
    return lambda layout: Host(tmp_path, layout, programs)


def _mount(container_path: str, file: str) -> tuple[str, ...]:
    return ("mount", container_path, file, "ro", "nosuid", "nodev", "rbind", "rprivate")


def _programs(directory: str) -> set[tuple[str, ...]]:
    return {_mount(f"{directory}/nvidia-{name}", f"bin/nvidia-{name}") for name in BINARIES}


def _gbm_links(directory: str) -> set[tuple[str, ...]]:
    """ldconfig makes the first in any case; the second is for linkers."""
    name = f"{directory}/libnvidia-egl-gbm.so"
    return {("link", f"{name}.1", "libnvidia-egl-gbm.so.1.1.2"), ("link", name, "libnvidia-egl-gbm.so.1")}


FIRMWARE = {
    _mount(f"/lib/firmware/nvidia/{VERSION}/gsp_{chip}.bin", f"firmware/nvidia/{VERSION}/gsp_{chip}.bin")
    for chip in ("ga10x", "tu10x")
}
SHARE = {
    _mount("/usr/share/glvnd/egl_vendor.d/10_nvidia.json", "share/glvnd/egl_vendor.d/10_nvidia.json"),
    _mount("/etc/vulkan/icd.d/nvidia_icd.json", "share/vulkan/icd.d/nvidia_icd.json"),
    _mount("/etc/vulkan/implicit_layer.d/nvidia_layers.json", "share/vulkan/implicit_layer.d/nvidia_layers.json"),
}


@pytest.mark.parametrize(
    ("layout", "nvidias", "ours"),
    [
        pytest.param(AL2023, set(), _gbm_links("/usr/lib64"), id="al2023"),
        pytest.param(DEBIAN, set(), _gbm_links("/usr/lib/x86_64-linux-gnu/nvidia/current"), id="debian"),
        pytest.param(GPU_OPERATOR, set(), _gbm_links("/usr/lib/x86_64-linux-gnu"), id="gpu-operator"),
        pytest.param(GKE, _programs("/bin"), {*_programs("/usr/bin"), *_gbm_links("/lib64"), *FIRMWARE}, id="gke"),
        pytest.param(
            USR_LOCAL_NVIDIA,
            _programs("/bin"),
            {*_programs("/usr/bin"), *_gbm_links("/lib64"), *FIRMWARE, *SHARE},
            id="own-directory",
        ),
    ],
)
def test_our_search_gives_what_nvidias_generator_gives_but_for_what_the_docs_list(
    host: Callable[[Layout], Host], layout: Layout, nvidias: set[tuple[str, ...]], ours: set[tuple[str, ...]]
) -> None:
    made = host(layout)

    by_nvidia, by_us = made.facts(*NVIDIA), made.facts(*OURS)

    assert by_nvidia - by_us == nvidias
    assert by_us - by_nvidia == ours
    assert len(by_nvidia & by_us) > 60


@pytest.mark.parametrize(
    "layout", [BOTTLEROCKET, BOTTLEROCKET_OLD, USR_LOCAL], ids=["bottlerocket", "old", "usr-local"]
)
def test_host_that_nvidias_generator_cannot_read_gets_our_search(
    host: Callable[[Layout], Host], layout: Layout
) -> None:
    made = host(layout)

    assert made.facts(EditsSource.AUTO, HookMode.AUTO) == made.facts(*OURS)
    with pytest.raises(
        CdiError, match=r"--cdi-edits=nvidia-ctk: .*nvidia-ctk failed with exit code 1: .*libnvidia-ml|NVML"
    ):
        made.edits(*NVIDIA)


def test_generator_takes_the_running_driver_of_several(host: Callable[[Layout], Host]) -> None:
    made = host(AL2023)
    for version in ("570.86.15", "590.10.01"):
        for name in ("libcuda", "libnvidia-ml"):
            path = made.tree.root / f"usr/lib64/{name}.so.{version}"
            compiled.compile_library(path, version)

    hosts = {mount.host_path for mount in made.edits(*NVIDIA).mounts}

    assert f"/usr/lib64/libcuda.so.{VERSION}" in hosts
    assert [path for path in hosts if "570.86.15" in path or "590.10.01" in path] == []


def test_program_has_all_the_hooks_that_we_call(tmp_path: Path, programs: Path) -> None:
    roots = DriverTree(tmp_path, GPU_OPERATOR).roots
    shared = tmp_path / "plugins"

    found = HookFinder(Toolbox(roots, shared), Tools(shared=shared, own=(programs,))).find()

    assert set(HOOKS) <= found.subcommands
    assert "commands" not in found.subcommands


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounts and hooks need root: run make toolkit as root")


def _of_driver(seen: bundle.Seen) -> dict[str, str]:
    """Name -> the driver whose library was loaded, or the loader's complaint."""
    return dict(line.split(" ", 1) for line in seen.probes[0].splitlines())


@needs_root
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
@pytest.mark.parametrize(
    "how", [(EditsSource.AUTO, HookMode.AUTO), OURS, HOOK_FREE], ids=["auto", "hooks", "hook-free"]
)
def test_image_with_nothing_but_a_c_library_loads_the_driver(
    host: Callable[[Layout], Host], tmp_path: Path, layout: Layout, how: tuple[EditsSource, HookMode]
) -> None:
    made = host(layout)
    rootfs = compiled.image(tmp_path / "bundle/rootfs")
    assert list((rootfs / "etc").iterdir()) == []

    seen = bundle.create(rootfs, made.edits(*how), made.seen, [[compiled.PROBE, *LOADED, FULL_NAME]])

    assert [output for code, output in seen.hooks if code != 0] == []
    assert _of_driver(seen) == dict.fromkeys((*LOADED, FULL_NAME), VERSION)


@needs_root
@pytest.mark.parametrize("how", [NVIDIA, OURS, HOOK_FREE], ids=["nvidia-ctk", "hooks", "hook-free"])
def test_image_that_brings_another_driver_loads_the_hosts(
    host: Callable[[Layout], Host], tmp_path: Path, how: tuple[EditsSource, HookMode]
) -> None:
    made = host(AL2023)
    rootfs = compiled.image(tmp_path / "bundle/rootfs")
    directory = rootfs / f"usr/lib/{os.uname().machine}-linux-gnu"
    for name in ("libcuda.so", "libnvidia-ml.so"):
        compiled.compile_library(directory / f"{name}.1", "470.1.1")
        (directory / f"{name}.1").rename(directory / f"{name}.470.1.1")
        (directory / f"{name}.1").symlink_to(f"{name}.470.1.1")
    (rootfs / "etc/ld.so.conf").write_text("include /etc/ld.so.conf.d/*.conf\n")

    seen = bundle.create(rootfs, made.edits(*how), made.seen, [[compiled.PROBE, "libcuda.so.1", "libnvidia-ml.so.1"]])

    assert _of_driver(seen) == {"libcuda.so.1": VERSION, "libnvidia-ml.so.1": VERSION}


@needs_root
@pytest.mark.parametrize("how", [NVIDIA, OURS], ids=["nvidia-ctk", "hooks"])
@pytest.mark.parametrize(("brought", "loaded"), [("590.10.01", "590.10.01"), ("570.86.15", VERSION)])
def test_newer_cuda_compatibility_library_of_an_image_is_used(
    host: Callable[[Layout], Host], tmp_path: Path, how: tuple[EditsSource, HookMode], brought: str, loaded: str
) -> None:
    made = host(AL2023)
    rootfs = compiled.image(tmp_path / "bundle/rootfs")
    library = rootfs / f"usr/local/cuda/compat/libcuda.so.{brought}"
    compiled.compile_library(library.with_name("libcuda.so.1"), brought)
    library.with_name("libcuda.so.1").rename(library)
    library.with_name("libcuda.so.1").symlink_to(library.name)

    seen = bundle.create(rootfs, made.edits(*how), made.seen, [[compiled.PROBE, "libcuda.so.1"]])

    assert _of_driver(seen) == {"libcuda.so.1": loaded}


@needs_root
@pytest.mark.parametrize("how", [NVIDIA, OURS], ids=["nvidia-ctk", "hooks"])
def test_hooks_make_the_links_that_the_host_has(
    host: Callable[[Layout], Host], tmp_path: Path, how: tuple[EditsSource, HookMode]
) -> None:
    made = host(AL2023)
    rootfs = compiled.image(tmp_path / "bundle/rootfs")

    bundle.create(rootfs, made.edits(*how), made.seen)

    made_links = {
        str(path.relative_to(rootfs)): os.readlink(path) for path in rootfs.rglob("*.so*") if path.is_symlink()
    }
    for directory, name in (("usr/lib64", "libcuda"), ("usr/lib64/vdpau", "libvdpau_nvidia")):
        assert made_links[f"{directory}/{name}.so.1"] == f"{name}.so.{VERSION}"
        assert made_links[f"{directory}/{name}.so"] == f"{name}.so.1"
    assert made_links["usr/lib64/gbm/nvidia-drm_gbm.so"] == "../libnvidia-allocator.so.1"
    assert made_links["usr/lib64/libGLX_indirect.so.0"] == f"libGLX_nvidia.so.{VERSION}"
