"""Where driver files and device nodes are, from settings and from what the disk shows. Reads only."""

from pathlib import Path

from dra_driver.hostfs import DriverRoots, resolve_inside
from dra_driver.settings.values import Settings

_MOUNTED_DRIVER_ROOT = Path("/driver-root")
_ROOT = Path("/")


def roots(settings: Settings, mounted_driver_root: Path = _MOUNTED_DRIVER_ROOT) -> DriverRoots:
    """The four roots; settings win over what is found.

    The driver root is seen under ``mounted_driver_root`` when that directory exists, else at its own path.
    """
    seen_driver = settings.container_driver_root or (
        mounted_driver_root if mounted_driver_root.is_dir() else settings.driver_root
    )
    dev_root = _dev_root(settings, seen_driver)
    seen_dev = settings.container_dev_root or _seen_dev_root(dev_root, settings.driver_root, seen_driver)
    return DriverRoots(
        driver_root=settings.driver_root,
        dev_root=dev_root,
        container_driver_root=seen_driver,
        container_dev_root=seen_dev,
    )


def roots_in(folder: Path, settings: Settings) -> DriverRoots:
    """The four roots of a host whose ``/`` is a folder here, as the driver on that host would have them."""
    seen_driver = _inside(folder, settings.driver_root)
    dev_root = _dev_root(settings, seen_driver)
    return DriverRoots(
        driver_root=settings.driver_root,
        dev_root=dev_root,
        container_driver_root=seen_driver,
        container_dev_root=_inside(folder, dev_root),
    )


def _dev_root(settings: Settings, seen_driver: Path) -> Path:
    """The driver root if it holds ``dev/nvidia*`` (a driver container keeps its own nodes), else ``/``."""
    return settings.dev_root or (settings.driver_root if _has_device_nodes(seen_driver) else _ROOT)


def _inside(folder: Path, host_path: Path) -> Path:
    """Where a host path is seen in the folder, there or not."""
    return resolve_inside(folder, host_path) or folder / str(host_path).lstrip("/")


def _seen_dev_root(dev_root: Path, driver_root: Path, seen_driver: Path) -> Path:
    """Under the mounted driver root when that is the same tree and brings its ``dev`` along, else at its own
    path.

    A privileged container has a ``/dev`` of its own, filled once: nodes that the host makes later show only
    in the mounted tree.
    """
    if dev_root == driver_root and resolve_inside(seen_driver, "dev") is not None:
        return seen_driver
    return dev_root


def _has_device_nodes(root: Path) -> bool:
    dev = resolve_inside(root, "dev")
    try:
        return dev is not None and any(entry.name.startswith("nvidia") for entry in dev.iterdir())
    except OSError:
        return False
