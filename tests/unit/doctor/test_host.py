import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dra_driver.doctor.host import Host
from tests.driver_tree import VERSION
from tests.node_tree import KUBELET, NodeTree, healthy
from tests.unit.doctor.conftest import Examine


def test_links_of_a_folder_lead_nowhere_else(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/os-release").symlink_to("/etc/passwd")

    assert Host(tmp_path).read(Path("/etc/os-release")) is None


def test_what_is_no_regular_file_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")

    assert Host(tmp_path).read(Path("/pipe")) is None


def test_container_sees_what_is_mounted_at_its_own_path_and_the_rest_under_the_root(tmp_path: Path) -> None:
    (tmp_path / "root/etc").mkdir(parents=True)
    (tmp_path / "root/etc/os-release").write_text("host\n")
    (tmp_path / "own").mkdir()
    (tmp_path / "own/file").write_text("own\n")

    host = Host(tmp_path / "root", (tmp_path / "own",))

    assert host.read(Path("/etc/os-release")) == "host\n"
    assert host.read(tmp_path / "own/file") == "own\n"


def test_container_without_the_hosts_root_says_what_it_cannot_see(tmp_path: Path) -> None:
    host = Host(None, (tmp_path,))

    assert (host.sees(Path("/etc/containerd")), host.sees(tmp_path / "x")) == (False, True)
    assert host.read(Path("/etc/os-release")) is None


@pytest.mark.parametrize("same", [True, False], ids=["this machine", "another one"])
def test_machine_is_known_by_its_boot(tmp_path: Path, same: bool) -> None:
    own = Path("/proc/sys/kernel/random/boot_id").read_text()
    tree = NodeTree(tmp_path).add("/proc/sys/kernel/random/boot_id", own if same else f"{own.strip()[:-1]}x\n")

    assert Host(tree.root).is_this_machine is same


def test_folder_without_a_proc_is_not_this_machine(tmp_path: Path) -> None:
    assert not Host(tmp_path).is_this_machine


@pytest.fixture
def unprivileged() -> Iterator[Path]:
    """A folder that all may enter; the test runs without root's rights."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@contextmanager
def without_rights() -> Iterator[None]:
    """Root's are laid down."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


def test_user_who_may_not_read_everything_is_told_what(unprivileged: Path, run: Examine) -> None:
    tree = healthy(unprivileged).this_driver()
    closed = tree.path(f"{KUBELET}/device-plugins"), tree.path("/etc/containerd/config.toml")
    for path in closed:
        path.chmod(0)
    with without_rights():
        found = run(tree, None)
    closed[0].chmod(stat.S_IRWXU)

    assert found.of("rights").facts["unreadable"] == [
        "/etc/containerd/config.toml",
        f"{KUBELET}/device-plugins",
        f"{KUBELET}/device-plugins/kubelet_internal_checkpoint",
    ]
    assert found.of("rights").remedy == "run as root"
    assert found.problems == {}
    assert found.of("containerd").remedy == "run as root"
    assert "cannot be seen: this user may not read" in found.warnings["publishers"]
    assert found.of("publishers").remedy == "run as root"


@pytest.mark.parametrize("closed", ["/usr/lib64", f"/usr/lib64/libcuda.so.{VERSION}", "/usr"])
def test_driver_that_this_user_may_not_read_is_not_called_missing(
    unprivileged: Path, run: Examine, closed: str
) -> None:
    tree = healthy(unprivileged)
    path = tree.path(closed)
    path.chmod(0)
    with without_rights():
        found = run(tree, None)
    path.chmod(stat.S_IRWXU)

    assert "no whole driver seen under /, but this user may not read " in found.warnings["driver"]
    assert found.of("driver").remedy == "run as root"
    assert any(name.startswith(closed) for name in found.of("rights").facts["unreadable"])


def test_root_is_not_told_to_run_as_root(tmp_path: Path, run: Examine) -> None:
    tree = healthy(tmp_path)
    tree.path("/proc/devices").unlink()
    tree.path("/proc/devices").mkdir()
    tree.containerd('imports = ["/gone.toml"]\n')

    assert [finding.check for finding in run(tree, None) if "root" in finding.remedy.split()] == []
