"""Our own search for what a container needs of an NVIDIA driver, where NVIDIA's generator is not to be had."""

from collections.abc import Iterator

from dra_driver.cdi import host_files
from dra_driver.cdi.layout import Finds
from dra_driver.cdi.libraries import REQUIRED_LIBRARIES, LibraryScan, scan_libraries
from dra_driver.hostfs import LIBRARY_DIRECTORIES, DriverRoots
from dra_driver.model.errors import CdiError


def places(driver_version: str) -> Iterator[str]:
    """Where files are looked for, relative to the driver root."""
    yield from LIBRARY_DIRECTORIES
    yield from (f"{directory}/vdpau" for directory in LIBRARY_DIRECTORIES if directory)
    yield from host_files.places(driver_version)


def find(roots: DriverRoots, driver_version: str) -> Finds:
    """What the driver root has of this version. Raises CdiError when libcuda or libnvidia-ml is missing."""
    root = roots.container_driver_root
    scan = scan_libraries(root, driver_version)
    _require_libraries(roots, scan, driver_version)
    modules = host_files.xorg_modules(root, driver_version)
    return Finds(
        driver_version=driver_version,
        libraries=scan.libraries,
        files={
            **host_files.binaries(root),
            **host_files.firmware(root, driver_version),
            **host_files.configs(root),
            **modules,
        },
        links=host_files.module_links(modules),
        sockets=host_files.sockets(root),
        refused=scan.refused_files,
    )


def _require_libraries(roots: DriverRoots, scan: LibraryScan, driver_version: str) -> None:
    missing = [name for name in (f"{name}.{driver_version}" for name in REQUIRED_LIBRARIES) if scan.get(name) is None]
    if not missing:
        return
    searched = ", ".join(str(roots.driver_root / directory) for directory in LIBRARY_DIRECTORIES)
    refused = "".join(f"; {name} is {scan.refused[name]}" for name in missing if name in scan.refused)
    others = f" (found there: {', '.join(scan.other_versions[:4])})" if scan.other_versions else ""
    raise CdiError(
        f"{' and '.join(missing)} of the running driver not found in {searched}{others}{refused}, seen here under "
        f"{roots.container_driver_root}: correct the driver root, or finish the driver's setup"
    )
