import errno
import logging
import os
from pathlib import Path

import pytest

from dra_driver.cdi.hook_program import HOOKS, HookFinder, NoHookProgram
from dra_driver.cdi.host_programs import Toolbox
from dra_driver.cdi.tools import Tools
from dra_driver.hostfs import DriverRoots
from dra_driver.model.errors import CdiError
from tests.driver_tree import BOTTLEROCKET, GPU_OPERATOR, DriverTree, driver_tree
from tests.unit.cdi import fake_tools


class Node:
    """A driver's process on a host: its image, its directory, the host's tree."""

    def __init__(self, base: Path, tree: DriverTree) -> None:
        self.tree = tree
        self.image = base / "image/usr/bin/nvidia-cdi-hook"
        self.shared = base / "plugins/gpu.nvidia.com"

    def finder(self, given: Path | None = None) -> HookFinder:
        tools = Tools(shared=self.shared, hook_path=given, own=(self.image.parent,))
        return HookFinder(Toolbox(self.tree.roots, self.shared), tools)


@pytest.fixture
def node(tmp_path: Path, tree: DriverTree) -> Node:
    return Node(tmp_path, tree)


def test_images_program_is_copied_to_where_the_host_sees_it(node: Node) -> None:
    fake_tools.hook(node.image)

    found = node.finder().find()

    copy = node.shared / "nvidia-cdi-hook"
    assert found.path == str(copy)
    assert copy.read_bytes() == node.image.read_bytes()
    assert copy.stat().st_mode & 0o777 == 0o755
    assert [path.name for path in node.shared.iterdir()] == ["nvidia-cdi-hook"]


def test_copy_of_an_earlier_version_is_replaced_and_not_written_into(node: Node) -> None:
    fake_tools.hook(node.image, ["create-symlinks", "update-ldcache"])
    node.finder().find()
    running = (node.shared / "nvidia-cdi-hook").open("rb")
    before = os.fstat(running.fileno()).st_ino

    fake_tools.hook(node.image)
    found = node.finder().find()

    assert set(HOOKS) <= found.subcommands
    assert (node.shared / "nvidia-cdi-hook").stat().st_ino != before
    assert b"enable-cuda-compat" not in running.read()
    running.close()


def test_same_program_is_not_copied_again(node: Node) -> None:
    fake_tools.hook(node.image)
    node.finder().find()
    before = (node.shared / "nvidia-cdi-hook").stat()

    node.finder().find()

    after = (node.shared / "nvidia-cdi-hook").stat()
    assert (after.st_ino, after.st_ctime_ns) == (before.st_ino, before.st_ctime_ns)


def test_broken_program_of_an_image_does_not_take_the_place_of_a_good_copy(node: Node) -> None:
    fake_tools.hook(node.image)
    node.finder().find()
    copy = node.shared / "nvidia-cdi-hook"
    good = copy.read_bytes()

    fake_tools.program(node.image, "#!/bin/sh\nexit 1\n")
    with pytest.raises(NoHookProgram, match=f"^{copy} failed with exit code 1"):
        node.finder().find()

    assert copy.read_bytes() == good
    assert [path.name for path in node.shared.iterdir()] == ["nvidia-cdi-hook"]


def test_copy_that_fails_leaves_nothing_behind(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill_disk(source: Path, target: Path) -> None:
        target.write_bytes(b"#!/bin")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))

    fake_tools.hook(node.image)
    monkeypatch.setattr("shutil.copyfile", fill_disk)

    with pytest.raises(NoHookProgram, match="No space left on device"):
        node.finder().find()
    assert list(node.shared.iterdir()) == []


def test_directory_in_the_place_of_the_copy_is_told_and_nothing_left_behind(node: Node) -> None:
    fake_tools.hook(node.image)
    (node.shared / "nvidia-cdi-hook").mkdir(parents=True)

    with pytest.raises(NoHookProgram, match="Is a directory"):
        node.finder().find()
    assert [path.name for path in node.shared.iterdir()] == ["nvidia-cdi-hook"]


def test_what_earlier_runs_left_is_swept(node: Node) -> None:
    fake_tools.hook(node.image)
    (node.shared / ".nvidia-cdi-hook.abc").mkdir(parents=True)
    (node.shared / ".nvidia-cdi-hook.abc/nvidia-cdi-hook").touch()
    (node.shared / ".nvidia-cdi-hook.1").touch()
    (node.shared / "checkpoint.db").touch()

    node.finder().find()

    assert {path.name for path in node.shared.iterdir()} == {"nvidia-cdi-hook", "checkpoint.db"}


@pytest.mark.parametrize("mode", [0o644, 0o700, 0])
def test_copy_that_lost_its_mode_is_made_anew(node: Node, mode: int) -> None:
    fake_tools.hook(node.image)
    copy = Path(node.finder().find().path)
    copy.chmod(mode)

    node.finder().find()

    assert copy.stat().st_mode & 0o777 == 0o755


def test_hosts_program_is_called_where_it_lies(node: Node) -> None:
    fake_tools.hook(node.tree.path("usr/bin/nvidia-cdi-hook"))

    assert node.finder().find().path == "/usr/bin/nvidia-cdi-hook"
    assert not node.shared.exists()


def test_hosts_program_behind_a_sysroot_has_the_path_that_outlives_updates(tmp_path: Path) -> None:
    node = Node(tmp_path, driver_tree(tmp_path, BOTTLEROCKET))
    fake_tools.hook(node.tree.path("usr/bin/nvidia-cdi-hook"))

    assert node.finder().find().path == "/usr/bin/nvidia-cdi-hook"


def test_images_program_beats_the_hosts(node: Node) -> None:
    fake_tools.hook(node.image)
    fake_tools.hook(node.tree.path("usr/bin/nvidia-cdi-hook"))

    assert node.finder().find().path == str(node.shared / "nvidia-cdi-hook")


def test_program_of_a_driver_container_is_not_taken_for_the_hosts(tmp_path: Path) -> None:
    node = Node(tmp_path, driver_tree(tmp_path, GPU_OPERATOR))
    fake_tools.hook(node.tree.path("usr/bin/nvidia-cdi-hook"))

    with pytest.raises(NoHookProgram, match="there is no nvidia-cdi-hook in "):
        node.finder().find()


def test_missing_program_is_told_with_the_places(node: Node) -> None:
    with pytest.raises(NoHookProgram) as caught:
        node.finder().find()

    host = "/opt/bin, /usr/bin, /usr/sbin, /bin, /sbin, /usr/libexec/nvidia/tesla/bin, "
    host += "/usr/local/bin, /usr/local/nvidia/toolkit"
    assert str(caught.value) == f"there is no nvidia-cdi-hook in {node.image.parent}, {host}"


def test_given_program_is_asked_where_the_host_has_it(node: Node) -> None:
    fake_tools.hook(node.tree.path("usr/local/nvidia/toolkit/nvidia-cdi-hook"), ["create-symlinks", "update-ldcache"])
    given = Path("/usr/local/nvidia/toolkit/nvidia-cdi-hook")

    found = node.finder(given).find()

    assert found.path == str(given)
    assert found.subcommands >= {"create-symlinks", "update-ldcache"}
    assert "enable-cuda-compat" not in found.subcommands


def test_given_program_that_is_missing_is_an_error_that_names_the_setting(node: Node) -> None:
    with pytest.raises(
        CdiError, match=r"^--nvidia-cdi-hook-path \(NVIDIA_CDI_HOOK_PATH\): found /opt/hook, there is no"
    ):
        node.finder(Path("/opt/hook")).find()


def test_given_program_that_cannot_be_seen_is_taken_as_given(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    node = Node(tmp_path, driver_tree(tmp_path, GPU_OPERATOR))
    finder = node.finder(Path("/usr/local/nvidia/toolkit/nvidia-cdi-hook"))

    with caplog.at_level(logging.WARNING):
        found = [finder.find() for _ in range(3)]

    assert {program.path for program in found} == {"/usr/local/nvidia/toolkit/nvidia-cdi-hook"}
    assert found[0].subcommands == set(HOOKS)
    assert len([record for record in caplog.records if "cannot be seen" in record.message]) == 1


def test_given_program_is_asked_by_a_driver_that_runs_on_the_host_itself(tmp_path: Path) -> None:
    root = tmp_path / "simulated-node"
    roots = DriverRoots(driver_root=root, dev_root=root, container_driver_root=root, container_dev_root=root)
    given = fake_tools.hook(tmp_path / "opt/bin/nvidia-cdi-hook", ["create-symlinks", "update-ldcache"])

    tools = Tools(shared=tmp_path / "plugins", hook_path=given, own=())
    found = HookFinder(Toolbox(roots, tools.shared), tools).find()

    assert (found.path, "enable-cuda-compat" in found.subcommands) == (str(given), False)


@pytest.mark.parametrize("on_host", [True, False])
def test_given_program_that_is_missing_is_told_from_one_that_cannot_be_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_host: bool
) -> None:
    root = tmp_path / "driver"
    roots = DriverRoots(driver_root=root, dev_root=root, container_driver_root=root, container_dev_root=root)
    monkeypatch.setattr("dra_driver.cdi.host_programs._runs_on_host", lambda: on_host)
    tools = Tools(shared=tmp_path / "plugins", hook_path=Path("/nope"), own=())
    finder = HookFinder(Toolbox(roots, tools.shared), tools)

    if on_host:
        with pytest.raises(CdiError, match="found /nope, there is no such program"):
            finder.find()
    else:
        assert finder.find().path == "/nope"


def test_hook_that_a_program_lacks_is_told_in_one_line(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    fake_tools.hook(node.image, [name for name in HOOKS if name != "disable-device-node-modification"])
    finder = node.finder()

    with caplog.at_level(logging.WARNING):
        found = [finder.find() for _ in range(3)]

    assert "disable-device-node-modification" not in found[0].subcommands
    assert [record.message for record in caplog.records] == [
        f"{node.shared}/nvidia-cdi-hook has no hook disable-device-node-modification: left out"
    ]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param("#!/bin/sh\necho boom >&2; exit 3\n", "failed with exit code 3: boom", id="fails"),
        pytest.param("#!/nonexistent/loader\n", "cannot be run: No such file or directory", id="no loader"),
        pytest.param("#!/bin/sh\necho hello\n", "has no hook create-symlinks and update-ldcache", id="another program"),
        pytest.param("#!/bin/sh\nkill -SEGV $$\n", "was killed by signal SIGSEGV", id="dies"),
    ],
)
def test_program_that_cannot_be_used_is_told_with_the_reason(node: Node, text: str, reason: str) -> None:
    fake_tools.program(node.image, text)

    with pytest.raises(NoHookProgram, match=f"^{node.shared}/nvidia-cdi-hook {reason}"):
        node.finder().find()


def test_hosts_program_stands_in_for_a_broken_one_of_the_image(node: Node) -> None:
    fake_tools.program(node.image, "#!/nonexistent/loader\n")
    fake_tools.hook(node.tree.path("usr/bin/nvidia-cdi-hook"))

    assert node.finder().find().path == "/usr/bin/nvidia-cdi-hook"


def test_program_for_a_newer_c_library_is_asked_with_the_hosts_own_loader(node: Node) -> None:
    machine = os.uname().machine
    name = {"x86_64": "lib64/ld-linux-x86-64.so.2", "aarch64": "lib/ld-linux-aarch64.so.1"}[machine]
    fake_tools.program(
        node.tree.path("usr/bin/nvidia-cdi-hook"),
        '#!/bin/sh\n[ "$HOSTS" ] || { echo "libc.so.6: version \'GLIBC_2.99\' not found" >&2; exit 1; }\n'
        'printf "COMMANDS:\\n   create-symlinks  x\\n   update-ldcache  x\\n"\n',
    )
    node.tree.add("usr/lib64/libc.so.6")
    fake_tools.program(
        node.tree.path(name),
        f'#!/bin/sh\n[ "$1 $2" = "--library-path {node.tree.root}/usr/lib64" ] && HOSTS=1 exec /bin/sh "$3"\n',
    )

    assert {"create-symlinks", "update-ldcache"} <= node.finder().find().subcommands
