"""Memory of a daemon is mounted once and always goes; the supervisor's view leads to the same folders."""

import os
import stat
import subprocess
import sys

import pytest

from dra_driver.mps.folders import Folder
from dra_driver.mps.mounts import KernelMounts, NoMounts, shm_kib
from tests.unit.mps.node import NOBODY, needs_root, on_disk

MOUNTS = KernelMounts()


@pytest.fixture
def shm(tmp_path):
    folder = tmp_path / "shm"
    folder.mkdir()
    yield folder
    MOUNTS.unmount(folder)


def mounted(folder):
    """(options of the mount, file system, source, options of the file system) of each mount there."""
    found = []
    with open("/proc/self/mountinfo") as lines:
        for line in lines:
            mount, _, source = line.rstrip().partition(" - ")
            if mount.split()[4] == str(folder):
                found.append((mount.split()[5], *source.split()))
    return found


@pytest.mark.parametrize(
    ("meminfo", "kib"),
    [("MemTotal:       131072000 kB\nMemFree: 1 kB\n", 65536000), ("MemFree: 1 kB\n", 65536), ("MemTotal:\n", 65536),
     ("MemTotal: much kB", 65536), (None, 65536)],
)  # fmt: skip
def test_size_is_half_of_the_memory_or_64_mib(tmp_path, meminfo, kib):
    path = tmp_path / "meminfo"
    if meminfo is not None:
        path.write_text(meminfo)

    assert shm_kib(path) == kib


@needs_root
def test_mount_is_a_tmpfs_for_everybody_that_runs_nothing(shm):
    MOUNTS.mount(shm)

    options, kind, source, size = mounted(shm)[0]
    assert (kind, source) == ("tmpfs", "shm")
    assert {"nosuid", "nodev", "noexec"} <= set(options.split(","))
    pages = os.sysconf("SC_PAGE_SIZE") // 1024
    assert f"size={-(-shm_kib() // pages) * pages}k" in size.split(",")
    assert shm.stat().st_mode & 0o7777 == 0o1777


@needs_root
def test_second_mount_keeps_the_first_and_what_is_in_it(shm):
    MOUNTS.mount(shm)
    (shm / "kept").write_text("")

    MOUNTS.mount(shm)

    assert len(mounted(shm)) == 1
    assert (shm / "kept").exists()


@needs_root
def test_mount_that_is_busy_goes_from_the_folder_at_once(shm):
    MOUNTS.mount(shm)
    with (shm / "open").open("w") as file:
        MOUNTS.unmount(shm)

        assert mounted(shm) == []
        shm.rmdir()
        file.write("whoever has it open goes on")
    shm.mkdir()


@needs_root
def test_two_mounts_on_one_folder_both_go(shm):
    for _ in range(2):
        subprocess.run(["mount", "-t", "tmpfs", "shm", shm], check=True)

    MOUNTS.unmount(shm)

    assert mounted(shm) == []


@needs_root
def test_unmount_of_what_is_not_mounted_or_not_there_is_success(shm, tmp_path):
    MOUNTS.unmount(shm)
    MOUNTS.unmount(tmp_path / "nowhere")


@needs_root
def test_mount_where_there_is_no_folder_names_it(tmp_path):
    with pytest.raises(OSError, match=f"{tmp_path}/nowhere cannot be mounted: No such file"):
        MOUNTS.mount(tmp_path / "nowhere")


def test_simulated_node_mounts_nothing(tmp_path):
    NoMounts().mount(tmp_path)

    assert not os.path.ismount(tmp_path)
    NoMounts().unmount(tmp_path)


_VIEW = """
import os, sys
from pathlib import Path
from dra_driver.mps.mounts import own_view
folder = Path(sys.argv[1])
seen = own_view(folder, Path("/usr"))
(folder / "shm/here").write_text("")
print("shm", Path("/dev/shm/here").exists())
os.setuid(int(sys.argv[2]))
print("pipe", (seen / "pipe/marked").exists(), len(str(seen)) < 10)
for name in ("pipe/link", "pipe/device", "lib/link"):
    try:
        print(name, open(seen / name).read())
    except OSError as error:
        print(name, error.strerror)
print("own", os.access(folder, os.X_OK))
"""


@needs_root
def test_view_is_short_and_open_to_users_and_free_of_what_containers_could_lead_the_daemon_to():
    with on_disk() as base:
        folder = Folder(base / "mps" / "x-abcde")
        folder.make()
        (folder.path / "lib").mkdir()
        (folder.pipe / "marked").write_text("")
        os.mknod(folder.pipe / "device", stat.S_IFCHR | 0o666, os.makedev(1, 3))
        for place in (folder.pipe, folder.path / "lib"):
            (place / "link").symlink_to("/proc/sys/kernel/ostype")
        MOUNTS.mount(folder.shm)
        try:
            done = subprocess.run(
                [sys.executable, "-c", _VIEW, folder.path, str(NOBODY)], stdout=subprocess.PIPE, text=True, check=True
            )
        finally:
            MOUNTS.unmount(folder.shm)
        assert done.stdout.splitlines() == [
            "shm True",
            "pipe True True",
            "pipe/link Too many levels of symbolic links",
            "pipe/device Permission denied",
            "lib/link Linux",
            "",
            "own False",
        ]
        assert mounted("/mnt") == []
