import os
import re
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from dra_driver.kubelet import sockets
from dra_driver.kubelet.server import DraServer
from dra_driver.kubelet.sockets import clear_stale, sweep_stale, target
from dra_driver.model.errors import SettingError, StateError
from tests.grpc.helpers import Remembering, Service, claim, prepare, services


def leave_stale_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()


def test_stale_socket_is_replaced(short_path: Path, service: Service, recorder: Remembering) -> None:
    path = short_path / "dra.sock"
    leave_stale_socket(path)
    server = DraServer(path, services(service), recorder)

    server.start()
    answers = prepare(path, claim("uid-1"))
    server.stop(0)

    assert answers["uid-1"].error == ""


def test_hidden_socket_that_is_listened_on_a_moment_later_stays(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden = short_path / ".0a1b2c"
    with socket.socket(socket.AF_UNIX) as starting:
        starting.bind(str(hidden))
        monkeypatch.setattr(sockets, "time", SimpleNamespace(sleep=lambda _: starting.listen()))

        sweep_stale(short_path, re.compile("other"))

        assert hidden.is_socket()


def test_hundreds_of_stale_sockets_are_removed_after_one_wait(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(200):
        leave_stale_socket(short_path / f"{number}.sock")
    waits: list[float] = []
    monkeypatch.setattr(sockets, "time", SimpleNamespace(sleep=waits.append))
    sweep_stale(short_path, re.compile(r".*\.sock"))
    assert list(short_path.iterdir()) == []
    assert len(waits) == 1


def test_name_of_any_bytes_is_escaped() -> None:
    assert target(Path("/a b\udcff%")) == "unix:/a%20b%FF%25"


def test_second_instance_is_refused_and_the_first_goes_on(
    short_path: Path, service: Service, recorder: Remembering
) -> None:
    path = short_path / "dra.sock"
    first, second = DraServer(path, services(service), recorder), DraServer(path, services(service), recorder)
    first.start()

    with pytest.raises(StateError, match=f"another instance is serving {path}"):
        second.start()
    second.stop(0)
    answers = prepare(path, claim("uid-1"))
    first.stop(0)

    assert answers["uid-1"].error == ""


def test_listener_too_busy_to_accept_counts_as_another_instance(short_path: Path) -> None:
    path = short_path / "dra.sock"
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as waiting:
        listener.bind(str(path))
        listener.listen(0)
        waiting.connect(str(path))

        with pytest.raises(StateError, match="another instance is serving"):
            clear_stale(path)


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (Path.touch, "a regular file"),
        (Path.mkdir, "a directory"),
        (os.mkfifo, "a FIFO"),
        (lambda path: path.symlink_to("elsewhere"), "a symbolic link"),
    ],
    ids=["file", "directory", "fifo", "link"],
)
def test_what_is_no_socket_is_left_alone_and_named(short_path: Path, make: Callable[[Path], None], kind: str) -> None:
    path = short_path / "dra.sock"
    make(path)

    with pytest.raises(StateError, match=f"{path} is {kind}"):
        clear_stale(path)

    assert os.path.lexists(path)


def test_path_over_107_bytes_is_refused_naming_path_and_limit(
    tmp_path: Path, service: Service, recorder: Remembering
) -> None:
    path = tmp_path / ("é" * 60) / "dra.sock"

    with pytest.raises(SettingError, match="the limit is 107") as caught:
        DraServer(path, services(service), recorder)

    assert str(path) in str(caught.value)


def test_path_of_107_bytes_works(short_path: Path, service: Service, recorder: Remembering) -> None:
    path = short_path / ("d" * (107 - len(f"{short_path}//dra.sock"))) / "dra.sock"
    server = DraServer(path, services(service), recorder)

    server.start()
    answers = prepare(path, claim("uid-1"))
    server.stop(0)

    assert len(str(path)) == 107
    assert answers["uid-1"].error == ""


def test_path_with_odd_characters_works(short_path: Path, service: Service, recorder: Remembering) -> None:
    path = short_path / "a b%20c#d?é" / "dra.sock"
    server = DraServer(path, services(service), recorder)

    server.start()
    answers = prepare(path, claim("uid-1"))
    server.stop(0)

    assert answers["uid-1"].error == ""


def test_directory_that_cannot_be_made_is_an_error_that_names_it(
    short_path: Path, service: Service, recorder: Remembering
) -> None:
    (short_path / "file").touch()
    server = DraServer(short_path / "file" / "gpu.nvidia.com" / "dra.sock", services(service), recorder)

    with pytest.raises(StateError, match=r"cannot make directory .*/file/gpu\.nvidia\.com"):
        server.start()
    server.stop(0)


def test_stop_spares_the_socket_of_a_successor(short_path: Path, service: Service, recorder: Remembering) -> None:
    path = short_path / "dra.sock"
    old, new = DraServer(path, services(service), recorder), DraServer(path, services(service), recorder)
    old.start()
    path.unlink()
    new.start()

    old.stop(0)
    answers = prepare(path, claim("uid-1"))
    new.stop(0)

    assert answers["uid-1"].error == ""
