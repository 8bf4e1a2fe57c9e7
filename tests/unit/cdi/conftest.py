import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.driver_tree import AL2023, DriverTree, driver_tree


@pytest.fixture
def tree(tmp_path: Path) -> DriverTree:
    """A host of EKS AL2023 with one GPU, its device nodes placeholders."""
    return driver_tree(tmp_path, AL2023)


@pytest.fixture
def make_character_device() -> Callable[..., None]:
    """Make a real device node; the test is skipped where this process may not."""

    def make(path: Path, major: int, minor: int, mode: int = 0o666) -> None:
        path.unlink(missing_ok=True)
        try:
            os.mknod(path, stat.S_IFCHR | mode, os.makedev(major, minor))
        except OSError as error:
            pytest.skip(f"device nodes cannot be made here: {error.strerror}")
        path.chmod(mode)

    return make
