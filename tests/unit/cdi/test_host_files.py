import os
from pathlib import Path

import pytest

from dra_driver.cdi import host_files
from tests.driver_tree import (
    AL2023,
    GKE,
    GPU_OPERATOR,
    LAYOUTS,
    MACHINE,
    USR_LOCAL_NVIDIA,
    VERSION,
    DriverTree,
    Layout,
    driver_tree,
)

LAYERS = "vulkan/implicit_layer.d/nvidia_layers.json"
ETC_VULKAN = "/etc/vulkan/icd.d/nvidia_icd"


def _inside(tree: DriverTree, found: dict[str, Path]) -> dict[str, str]:
    return {path: str(file.relative_to(tree.root)) for path, file in found.items()}


@pytest.mark.parametrize(
    ("layout", "configs"),
    [
        pytest.param(
            AL2023,
            {
                "/etc/OpenCL/vendors/nvidia.icd": "etc/OpenCL/vendors/nvidia.icd",
                f"{ETC_VULKAN}.{MACHINE}.json": f"usr/share/vulkan/icd.d/nvidia_icd.{MACHINE}.json",
                f"/etc/{LAYERS}": f"usr/share/{LAYERS}",
                "/usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json": (
                    "usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json"
                ),
                "/usr/share/glvnd/egl_vendor.d/10_nvidia.json": "usr/share/glvnd/egl_vendor.d/10_nvidia.json",
                "/usr/share/nvidia/nvoptix.bin": "usr/share/nvidia/nvoptix.bin",
            },
            id="al2023",
        ),
        pytest.param(GKE, {f"{ETC_VULKAN}.json": "vulkan/icd.d/nvidia_icd.json"}, id="gke"),
        pytest.param(
            USR_LOCAL_NVIDIA,
            {
                f"{ETC_VULKAN}.json": "share/vulkan/icd.d/nvidia_icd.json",
                f"/etc/{LAYERS}": f"share/{LAYERS}",
                "/usr/share/glvnd/egl_vendor.d/10_nvidia.json": "share/glvnd/egl_vendor.d/10_nvidia.json",
            },
            id="own-directory",
        ),
    ],
)
def test_configuration_is_where_the_loaders_of_any_image_look(
    tmp_path: Path, layout: Layout, configs: dict[str, str]
) -> None:
    tree = driver_tree(tmp_path, layout)

    assert _inside(tree, host_files.configs(tree.root)) == configs


def test_etc_beats_usr_share(tree: DriverTree) -> None:
    tree.add("etc/glvnd/egl_vendor.d/10_nvidia.json")

    assert _inside(tree, host_files.configs(tree.root))["/usr/share/glvnd/egl_vendor.d/10_nvidia.json"] == (
        "etc/glvnd/egl_vendor.d/10_nvidia.json"
    )


def test_x_modules_of_this_driver_are_found_with_the_name_they_are_loaded_by(tmp_path: Path) -> None:
    tree = driver_tree(tmp_path, GPU_OPERATOR)
    directory = "usr/lib/x86_64-linux-gnu/nvidia/xorg"
    tree.add(f"{directory}/libglxserver_nvidia.so.570.86.15")

    found = host_files.xorg_modules(tree.root, VERSION)

    assert _inside(tree, found) == {
        f"/{directory}/nvidia_drv.so": f"{directory}/nvidia_drv.so",
        f"/{directory}/libglxserver_nvidia.so.{VERSION}": f"{directory}/libglxserver_nvidia.so.{VERSION}",
    }
    assert host_files.module_links(found) == {
        f"/{directory}/libglxserver_nvidia.so": f"libglxserver_nvidia.so.{VERSION}"
    }


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_firmware_and_programs_are_found_whatever_the_layout(tmp_path: Path, layout: Layout) -> None:
    tree = driver_tree(tmp_path, layout)
    below = f"/lib/firmware/nvidia/{VERSION}"

    assert sorted(host_files.firmware(tree.root, VERSION)) == [f"{below}/gsp_ga10x.bin", f"{below}/gsp_tu10x.bin"]
    assert sorted(host_files.binaries(tree.root)) == [
        "/usr/bin/nvidia-cuda-mps-control",
        "/usr/bin/nvidia-cuda-mps-server",
        "/usr/bin/nvidia-debugdump",
        "/usr/bin/nvidia-persistenced",
        "/usr/bin/nvidia-smi",
    ]


@pytest.mark.parametrize("place", ["lib/firmware/updates", f"lib/firmware/{os.uname().release}"])
def test_firmware_that_the_kernel_prefers_is_preferred(tmp_path: Path, place: str) -> None:
    tree = driver_tree(tmp_path, GPU_OPERATOR)
    tree.add(f"{place}/nvidia/{VERSION}/gsp_ga10x.bin")
    tree.add(f"{place}/nvidia/{VERSION}/ucode_gh100.bin")

    found = _inside(tree, host_files.firmware(tree.root, VERSION))

    below = f"/lib/firmware/nvidia/{VERSION}"
    assert found[f"{below}/gsp_ga10x.bin"] == f"{place}/nvidia/{VERSION}/gsp_ga10x.bin"
    assert found[f"{below}/gsp_tu10x.bin"] == f"lib/firmware/nvidia/{VERSION}/gsp_tu10x.bin"
    assert found[f"{below}/ucode_gh100.bin"] == f"{place}/nvidia/{VERSION}/ucode_gh100.bin"


def test_socket_in_var_run_is_found_and_has_one_place_in_containers(tree: DriverTree) -> None:
    tree.add("var/run/nvidia-fabricmanager/socket")
    (tree.root / "tmp/nvidia-mps").mkdir(parents=True)

    assert _inside(tree, host_files.sockets(tree.root)) == {
        "/run/nvidia-fabricmanager/socket": "var/run/nvidia-fabricmanager/socket",
        "/tmp/nvidia-mps": "tmp/nvidia-mps",
    }


def test_nothing_of_another_drivers_firmware_is_taken(tree: DriverTree) -> None:
    tree.install("590.10.01")

    assert [path for path in host_files.firmware(tree.root, VERSION) if "590" in path] == []
