from collections.abc import Iterable
from pathlib import Path

import pytest

from dra_driver.cdi import builtin
from dra_driver.cdi.hook_program import HOOKS, HookProgram
from dra_driver.cdi.layout import HOOK_FREE_DIRECTORY, FileEdits, default_directories, hook_free, with_hooks
from tests.driver_tree import (
    AL2023,
    BOTTLEROCKET,
    BOTTLEROCKET_OLD,
    DEBIAN,
    EGL_GBM,
    GKE,
    GPU_OPERATOR,
    LAYOUTS,
    SONAMES,
    UNVERSIONED,
    USR_LOCAL,
    USR_LOCAL_NVIDIA,
    VERSION,
    DriverTree,
    Layout,
    driver_tree,
)

PROGRAM = "/var/lib/kubelet/plugins/gpu.nvidia.com/nvidia-cdi-hook"
LOADED = {
    *(f"{name}.so.{number}" for name, number in SONAMES.items()),
    *(f"{name}.so.{VERSION}" for name in UNVERSIONED),
    "libnvidia-egl-gbm.so.1",
    "libnvidia-nvvm70.so.4",
}
"""The names that programs, and the driver's libraries themselves, load libraries by."""


def _free(tree: DriverTree, machine: str = "x86_64") -> dict[str, str]:
    return _mounts(hook_free(builtin.find(tree.roots, VERSION), tree.roots.on_host, machine))


def _hooked(tree: DriverTree, subcommands: Iterable[str] = HOOKS) -> FileEdits:
    program = HookProgram(PROGRAM, frozenset(subcommands))
    return with_hooks(builtin.find(tree.roots, VERSION), program, tree.roots.on_host)


def _mounts(edits: FileEdits) -> dict[str, str]:
    """Container path -> host path."""
    return {mount.container_path: mount.host_path for mount in edits.mounts}


def _names(mounts: Iterable[str], directory: str) -> set[str]:
    return {path.removeprefix(f"{directory}/") for path in mounts if path.startswith(f"{directory}/")}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_without_hooks_every_name_is_in_the_directory_of_nvidias_images(tmp_path: Path, layout: Layout) -> None:
    vdpau = {"vdpau/libvdpau_nvidia.so.1", "vdpau/libvdpau_nvidia.so"} if layout.vdpau else set()
    linkers = {f"{name}.so" for name in SONAMES} | {"libnvidia-egl-gbm.so"}

    assert _names(_free(driver_tree(tmp_path, layout)), HOOK_FREE_DIRECTORY) == {
        *LOADED,
        *linkers,
        *vdpau,
        "libGLX_indirect.so.0",
        "gbm/nvidia-drm_gbm.so",
    }


@pytest.mark.parametrize("directory", ["/usr/lib64", "/usr/lib/x86_64-linux-gnu"])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_without_hooks_loaders_need_neither_cache_nor_environment(
    tmp_path: Path, layout: Layout, directory: str
) -> None:
    found = _names(_free(driver_tree(tmp_path, layout)), directory)

    assert found >= {*LOADED, "libcuda.so", "libnvidia-ml.so", "gbm/nvidia-drm_gbm.so"}


def test_without_hooks_other_machines_have_directories_of_their_own(tree: DriverTree) -> None:
    assert default_directories("aarch64") == ("/usr/lib64", "/usr/lib/aarch64-linux-gnu")
    assert default_directories("riscv64") == ("/usr/lib64", "/usr/lib")
    assert "/usr/lib/aarch64-linux-gnu/libcuda.so.1" in _free(tree, "aarch64")


@pytest.mark.parametrize(
    ("layout", "host_path"),
    [
        pytest.param(AL2023, f"/usr/lib64/libcuda.so.{VERSION}", id="al2023"),
        pytest.param(
            BOTTLEROCKET, f"/x86_64-bottlerocket-linux-gnu/sys-root/usr/lib/libcuda.so.{VERSION}", id="bottlerocket"
        ),
        pytest.param(BOTTLEROCKET_OLD, f"/usr/lib/nvidia/tesla/libcuda.so.{VERSION}", id="bottlerocket-old"),
        pytest.param(DEBIAN, f"/usr/lib/x86_64-linux-gnu/nvidia/current/libcuda.so.{VERSION}", id="debian"),
        pytest.param(GKE, f"/home/kubernetes/bin/nvidia/lib64/libcuda.so.{VERSION}", id="gke"),
        pytest.param(
            GPU_OPERATOR, f"/run/nvidia/driver/usr/lib/x86_64-linux-gnu/libcuda.so.{VERSION}", id="gpu-operator"
        ),
        pytest.param(USR_LOCAL_NVIDIA, f"/usr/local/nvidia/lib64/libcuda.so.{VERSION}", id="own-directory"),
        pytest.param(USR_LOCAL, f"/usr/local/lib/libcuda.so.{VERSION}", id="usr-local"),
    ],
)
def test_library_comes_from_where_the_host_has_it(tmp_path: Path, layout: Layout, host_path: str) -> None:
    tree = driver_tree(tmp_path, layout)

    assert _free(tree)[f"{HOOK_FREE_DIRECTORY}/libcuda.so.1"] == host_path
    assert host_path in _mounts(_hooked(tree)).values()


def test_without_hooks_the_library_path_of_the_image_is_left_alone(tree: DriverTree) -> None:
    edits = hook_free(builtin.find(tree.roots, VERSION), tree.roots.on_host, "x86_64")

    assert [str(variable) for variable in edits.env] == [
        f"TRITON_LIBCUDA_PATH={HOOK_FREE_DIRECTORY}",
        f"NVIDIA_CTK_LIBCUDA_DIR={HOOK_FREE_DIRECTORY}",
        "NVIDIA_VISIBLE_DEVICES=void",
    ]
    assert edits.hooks == ()


def test_without_hooks_x_modules_have_the_name_they_are_loaded_by(tmp_path: Path) -> None:
    mounts = _free(driver_tree(tmp_path, GPU_OPERATOR))

    directory = "/usr/lib/x86_64-linux-gnu/nvidia/xorg"
    assert mounts[f"{directory}/libglxserver_nvidia.so"] == (
        f"/run/nvidia/driver{directory}/libglxserver_nvidia.so.{VERSION}"
    )


@pytest.mark.parametrize(
    ("layout", "directory"),
    [
        pytest.param(AL2023, "/usr/lib64", id="al2023"),
        pytest.param(BOTTLEROCKET, "/usr/lib", id="bottlerocket"),
        pytest.param(BOTTLEROCKET_OLD, "/usr/lib/nvidia/tesla", id="bottlerocket-old"),
        pytest.param(DEBIAN, "/usr/lib/x86_64-linux-gnu/nvidia/current", id="debian"),
        pytest.param(GKE, "/lib64", id="gke"),
        pytest.param(GPU_OPERATOR, "/usr/lib/x86_64-linux-gnu", id="gpu-operator"),
        pytest.param(USR_LOCAL_NVIDIA, "/lib64", id="own-directory"),
        pytest.param(USR_LOCAL, "/lib", id="usr-local"),
    ],
)
def test_with_hooks_each_library_is_mounted_once_at_its_own_directory(
    tmp_path: Path, layout: Layout, directory: str
) -> None:
    edits = _hooked(driver_tree(tmp_path, layout))

    others = ("/xorg/", "/firmware/")
    libraries = [path for path in _mounts(edits) if path.startswith(directory) and not any(o in path for o in others)]
    assert {Path(path).name for path in libraries if "/vdpau/" not in path} == {
        *(f"{name}.so.{VERSION}" for name in (*SONAMES, *UNVERSIONED)),
        f"libnvidia-egl-gbm.so.{EGL_GBM}",
        "libnvidia-nvvm70.so.4",
    }
    assert edits.env[0].value == directory
    assert len(set(libraries)) == len(libraries)


def _arguments(edits: FileEdits, name: str) -> list[str]:
    (found,) = (hook for hook in edits.hooks if hook.args[1] == name)
    return list(found.args[2:])


def test_with_hooks_every_name_is_a_link_that_a_hook_makes(tree: DriverTree) -> None:
    arguments = _arguments(_hooked(tree), "create-symlinks")

    links = dict(text.split("::")[::-1] for text in arguments[1::2])
    assert set(arguments[0::2]) == {"--link"}
    assert {Path(link).name for link in links} >= {name for name in LOADED if ".so." in name} - {
        *(f"{name}.so.{VERSION}" for name in UNVERSIONED),
        "libnvidia-nvvm70.so.4",
    }
    assert links["/usr/lib64/libcuda.so"] == "libcuda.so.1"
    assert links["/usr/lib64/libcuda.so.1"] == f"libcuda.so.{VERSION}"
    assert links["/usr/lib64/gbm/nvidia-drm_gbm.so"] == "../libnvidia-allocator.so.1"
    assert links["/usr/lib64/vdpau/libvdpau_nvidia.so.1"] == f"libvdpau_nvidia.so.{VERSION}"


def test_with_hooks_the_loaders_cache_gets_every_directory_with_libraries(tree: DriverTree) -> None:
    assert _arguments(_hooked(tree), "update-ldcache") == ["--folder", "/usr/lib64", "--folder", "/usr/lib64/vdpau"]


def test_hooks_are_called_as_nvidias_tools_call_them_and_links_come_before_the_cache(tree: DriverTree) -> None:
    hooks = _hooked(tree).hooks

    assert [hook.args[1] for hook in hooks] == [
        "create-symlinks",
        "enable-cuda-compat",
        "update-ldcache",
        "disable-device-node-modification",
        "update-application-profile",
    ]
    assert {(hook.stage, hook.path, hook.args[0], hook.env) for hook in hooks} == {
        ("createContainer", PROGRAM, "nvidia-cdi-hook", ("NVIDIA_CTK_DEBUG=false",))
    }
    assert hooks[1].args[2:] == (f"--host-driver-version={VERSION}",)
    assert hooks[3].args[2:] == ()


def test_hook_that_the_program_lacks_is_left_out(tree: DriverTree) -> None:
    hooks = _hooked(tree, ["create-symlinks", "update-ldcache", "chmod"]).hooks

    assert [hook.args[1] for hook in hooks] == ["create-symlinks", "update-ldcache"]
