from pathlib import Path

import pytest

from dra_driver.cdi.libraries import Library, scan_libraries
from dra_driver.devices.elf import shared_object
from tests.driver_tree import (
    BOTTLEROCKET,
    DEBIAN,
    LAYOUTS,
    SONAMES,
    UNVERSIONED,
    VERSION,
    DriverTree,
    Layout,
    driver_tree,
)

WHOLE = {*(f"{name}.so.{VERSION}" for name in (*SONAMES, *UNVERSIONED)), "libnvidia-nvvm70.so.4"}
EGL = "libnvidia-egl-gbm.so.1.1.2"


def _found(tree: DriverTree, version: str = VERSION) -> dict[str, Library]:
    libraries = scan_libraries(tree.root, version).libraries
    found = {library.name: library for library in libraries}
    assert len(found) == len(libraries)
    return found


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_all_libraries_are_found_whatever_the_layout(tmp_path: Path, layout: Layout) -> None:
    vdpau = {f"libvdpau_nvidia.so.{VERSION}"} if layout.vdpau else set()

    assert set(_found(driver_tree(tmp_path, layout))) == {*WHOLE, EGL, *vdpau}


@pytest.mark.parametrize(
    ("name", "links"),
    [
        ("libcuda", {"libcuda.so.1": f"libcuda.so.{VERSION}", "libcuda.so": "libcuda.so.1"}),
        (
            "libnvidia-allocator",
            {
                "libnvidia-allocator.so.1": f"libnvidia-allocator.so.{VERSION}",
                "libnvidia-allocator.so": "libnvidia-allocator.so.1",
                "gbm/nvidia-drm_gbm.so": "../libnvidia-allocator.so.1",
            },
        ),
        (
            "libGLX_nvidia",
            {
                "libGLX_nvidia.so.0": f"libGLX_nvidia.so.{VERSION}",
                "libGLX_nvidia.so": "libGLX_nvidia.so.0",
                "libGLX_indirect.so.0": f"libGLX_nvidia.so.{VERSION}",
            },
        ),
        ("libnvidia-eglcore", {}),
    ],
)
def test_library_has_every_name_that_programs_load_it_by(tree: DriverTree, name: str, links: dict[str, str]) -> None:
    assert _found(tree)[f"{name}.so.{VERSION}"].links == links


def test_names_that_the_host_lacks_are_there_all_the_same(tree: DriverTree) -> None:
    for name in ("libcuda.so", "libcuda.so.1", "libnvidia-encode.so.1"):
        (tree.root / "usr/lib64" / name).unlink()

    found = _found(tree)

    assert found[f"libcuda.so.{VERSION}"].links == {
        "libcuda.so.1": f"libcuda.so.{VERSION}",
        "libcuda.so": "libcuda.so.1",
    }
    assert found[f"libnvidia-encode.so.{VERSION}"].soname == "libnvidia-encode.so.1"


def test_only_the_running_drivers_libraries_are_taken_when_several_are_installed(tree: DriverTree) -> None:
    for version in ("570.86.15", "590.10.01"):
        tree.install(version)

    assert set(_found(tree)) == {*WHOLE, EGL, f"libvdpau_nvidia.so.{VERSION}"}


def test_link_to_another_drivers_library_does_not_take_the_name_away(tree: DriverTree) -> None:
    tree.install("590.10.01")
    assert (tree.root / "usr/lib64/libcuda.so.1").readlink() == Path("libcuda.so.590.10.01")

    library = _found(tree)[f"libcuda.so.{VERSION}"]
    assert library.links["libcuda.so.1"] == f"libcuda.so.{VERSION}"


@pytest.mark.parametrize(("linked", "taken"), [("1.1.1", "1.1.1"), ("1.1.2", "1.1.2"), ("", "1.1.10")])
def test_library_with_a_version_of_its_own_is_the_one_in_use_or_the_newest(
    tree: DriverTree, linked: str, taken: str
) -> None:
    for version in ("1.1.1", "1.1.10"):
        tree.add_library(f"usr/lib64/libnvidia-egl-gbm.so.{version}", "libnvidia-egl-gbm.so.1")
    if linked:
        tree.link("usr/lib64/libnvidia-egl-gbm.so.1", f"libnvidia-egl-gbm.so.{linked}")
    else:
        (tree.root / "usr/lib64/libnvidia-egl-gbm.so.1").unlink()

    assert [name for name in _found(tree) if "egl-gbm" in name] == [f"libnvidia-egl-gbm.so.{taken}"]


def test_libraries_for_32_bit_programs_are_left_out(tree: DriverTree) -> None:
    small = shared_object("libcuda.so.1", "x86_64")
    for name in ("libcuda", "libnvidia-only-32"):
        tree.add(f"usr/lib/{name}.so.{VERSION}").write_bytes(small[:4] + b"\1" + small[5:])

    found = _found(tree)

    assert found[f"libcuda.so.{VERSION}"].directory == "/usr/lib64"
    assert f"libnvidia-only-32.so.{VERSION}" not in found


def test_link_is_followed_inside_the_root_only(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(shared_object("libnvidia-evil.so.1"))
    tree = driver_tree(tmp_path)
    tree.link(f"usr/lib64/libnvidia-evil.so.{VERSION}", str(outside))
    tree.link(f"usr/lib64/libnvidia-far.so.{VERSION}", "/opt/far")
    tree.add_library("opt/far", "libnvidia-far.so.1")

    found = _found(tree)

    assert f"libnvidia-evil.so.{VERSION}" not in found
    assert found[f"libnvidia-far.so.{VERSION}"].file == tree.root / "opt/far"


def test_alternatives_of_debian_lead_to_one_library_each(tmp_path: Path) -> None:
    tree = driver_tree(tmp_path, DEBIAN)
    tree.link("usr/lib/x86_64-linux-gnu/libcuda.so.1", "/etc/alternatives/glx--libcuda.so.1")
    tree.link("etc/alternatives/glx--libcuda.so.1", "/usr/lib/x86_64-linux-gnu/nvidia/current/libcuda.so.1")

    found = _found(tree)

    assert found[f"libcuda.so.{VERSION}"].folder == "/usr/lib/x86_64-linux-gnu/nvidia/current"


def test_directory_in_containers_is_the_search_directory_not_the_hosts_sysroot(tmp_path: Path) -> None:
    found = _found(driver_tree(tmp_path, BOTTLEROCKET))

    assert {library.folder for library in found.values()} == {"/usr/lib"}


def test_vdpau_stays_in_its_subdirectory(tree: DriverTree) -> None:
    assert _found(tree)[f"libvdpau_nvidia.so.{VERSION}"].folder == "/usr/lib64/vdpau"


def test_libraries_right_in_the_root_go_where_loaders_look(tmp_path: Path) -> None:
    tree = driver_tree(tmp_path, Layout(driver_root="/opt/driver", libraries=".", binaries=".", firmware="firmware"))

    assert _found(tree)[f"libcuda.so.{VERSION}"].folder == "/usr/lib64"


def test_links_of_other_libraries_are_left_out(tree: DriverTree) -> None:
    tree.add_library("usr/lib64/libz.so.1.2.11", "libz.so.1")
    tree.link("usr/lib64/libz.so.1", "libz.so.1.2.11")
    tree.link("usr/lib64/libcuda-of-another.so.1", "/opt/libcuda.so.1")

    found = _found(tree)

    names = {*found, *(link for library in found.values() for link in library.links)}
    assert names & {"libz.so.1", "libz.so.1.2.11", "libcuda-of-another.so.1"} == set()
