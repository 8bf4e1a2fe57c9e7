"""What else may be in the kubelet's registry, and other drivers that misbehave: nobody is missed, nothing is shaken."""

import errno
import os
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from dra_driver.kubelet import other_driver, registration
from dra_driver.kubelet.other_driver import EVENT, OtherDriver
from dra_driver.kubelet.plugin import Sockets
from dra_driver.kubelet.sockets import target
from dra_driver.observe.readiness import Conditions
from dra_driver_api import names
from dra_driver_api.kubelet import registration_pb2
from tests.fakes.cluster import FakeEvents
from tests.fakes.other_driver import OtherDraDriver
from tests.grpc.helpers import register, wait_until
from tests.grpc.instances import MakeOther, MakeOurs, Ours


@pytest.fixture
def registry(short_path: Path) -> Path:
    return short_path / "registry"


@pytest.fixture
def answering(registry: Path) -> Iterator[Callable[..., Path]]:
    """Starts a registration whose GetInfo gives these bytes, or does what is given."""
    servers: list[grpc.Server] = []

    def start(name: str, answer: bytes | Callable[[grpc.ServicerContext], bytes]) -> Path:
        def get_info(request: bytes, context: grpc.ServicerContext) -> bytes:
            return answer if isinstance(answer, bytes) else answer(context)

        server = grpc.server(ThreadPoolExecutor(2))
        handlers = {"GetInfo": grpc.unary_unary_rpc_method_handler(get_info)}
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("pluginregistration.Registration", handlers),)
        )
        path = registry / f"gpu.nvidia.com-{name}-reg.sock"
        server.add_insecure_port(target(path))
        server.start()
        servers.append(server)
        return path

    yield start
    for server in servers:
        server.stop(None).wait()


def info(endpoint: str = "/elsewhere/dra.sock") -> bytes:
    """An answer as NVIDIA's driver gives it."""
    made = registration_pb2.PluginInfo(type=names.PLUGIN_TYPE_DRA, name=names.DRIVER_NAME, endpoint=endpoint)
    return made.SerializeToString()


def refuse(context: grpc.ServicerContext) -> bytes:
    """An error instead of an answer."""
    context.abort(grpc.StatusCode.UNIMPLEMENTED, "what?")
    raise AssertionError


def listening(path: Path, backlog: int = 1) -> socket.socket:
    """A socket at which nobody speaks."""
    made = socket.socket(socket.AF_UNIX)
    made.bind(str(path))
    made.listen(backlog)
    return made


def no_utf8(path: Path) -> None:
    os.close(os.open(os.fsencode(path.parent) + b"/gpu.nvidia.com-\xff-reg.sock", os.O_CREAT))


def loop(path: Path) -> None:
    path.symlink_to(path.name)


def too_long(path: Path) -> None:
    """A socket that nobody can connect to by its path."""
    with socket.socket(socket.AF_UNIX) as made:
        short = path.parent / "s"
        made.bind(str(short))
        short.rename(path.with_name(f"gpu.nvidia.com-{'x' * 120}-reg.sock"))


ODD = (no_utf8, loop, too_long, os.mkfifo, Path.mkdir, Path.touch, lambda path: path.symlink_to("nowhere"))


@pytest.mark.parametrize("make", ODD, ids=["no UTF-8", "loop", "too long", "FIFO", "folder", "file", "dangling link"])
def test_what_is_no_socket_is_nobody_and_hides_nobody(
    ours: MakeOurs, other: MakeOther, registry: Path, make: Callable[[Path], None], capfd: pytest.CaptureFixture[str]
) -> None:
    make(registry / "gpu.nvidia.com-a-reg.sock")
    us = ours("pod-a")
    assert not us.other.in_the_way()
    other()
    assert us.other.in_the_way()
    assert capfd.readouterr().err == ""


def test_driver_behind_a_link_and_with_a_name_that_is_no_utf8_is_found(ours: MakeOurs, short_path: Path) -> None:
    nvidias = OtherDraDriver(short_path / "run", short_path / "plugins").start()
    (short_path / "registry" / "gpu.nvidia.com-reg.sock").symlink_to(nvidias.registration)
    us = ours("pod-a")
    assert us.other.in_the_way()
    nvidias.registration.rename(Path(os.fsdecode(os.fsencode(short_path / "registry") + b"/gpu.nvidia.com-\xff.sock")))
    assert us.other.in_the_way()
    assert "gpu.nvidia.com-?.sock answers" in us.condition()[1]
    nvidias.stop()


@pytest.mark.parametrize("answer", [b"\xff\xff\xff", b"", refuse], ids=["garbage", "nothing", "error"])
def test_answer_that_says_nothing_is_nobody(
    ours: MakeOurs, answering: Callable[..., Path], answer: bytes | Callable[[grpc.ServicerContext], bytes]
) -> None:
    answering("a", answer)
    us = ours("pod-a")
    assert not us.other.in_the_way()
    assert us.events.written == []


def test_driver_that_was_understood_and_is_not_now_is_there(ours: MakeOurs, answering: Callable[..., Path]) -> None:
    answers = [info(), b"\xff\xff", b"\xff\xff"]
    answering("a", lambda _: answers.pop(0))
    us = ours("pod-a")
    assert [us.other.in_the_way() for _ in range(3)] == [True, True, True]
    assert us.events.reasons() == [EVENT]


def test_endpoint_without_end_gives_one_short_line(ours: MakeOurs, answering: Callable[..., Path]) -> None:
    answering("a", info(endpoint="/e\n\0" * 100_000))
    us = ours("pod-a")
    assert us.other.in_the_way()
    ((_, _, text),) = us.events.written
    assert len(text) < 1024
    assert "\n" not in text
    assert "--device-plugin-conflict" in text


def test_those_who_are_slow_are_asked_at_the_same_time(
    ours: MakeOurs, answering: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(other_driver, "_ASK_SECONDS", 10.0)
    all_asked = threading.Barrier(8)

    def slowly(_: grpc.ServicerContext) -> bytes:
        all_asked.wait(9.0)
        return info()

    for number in range(8):
        answering(f"slow-{number}", slowly)
    assert ours("pod-a").other.in_the_way()
    assert not all_asked.broken


def test_socket_that_nobody_accepts_from_is_nobody(
    ours: MakeOurs, registry: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(other_driver, "_ASK_SECONDS", 0.1)
    with listening(registry / "gpu.nvidia.com-a-reg.sock", backlog=0):
        assert not ours("pod-a").other.in_the_way()


def test_hundreds_of_stale_sockets_are_not_asked(
    ours: MakeOurs, registry: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(300):
        listening(registry / f"gpu.nvidia.com-{number}-reg.sock").close()
    us = ours("pod-a")
    monkeypatch.setattr(grpc, "insecure_channel", None)
    assert not us.other.in_the_way()


def test_driver_of_another_name_is_asked_once(ours: MakeOurs, other: MakeOther) -> None:
    example = other(name="gpu.nvidia.com.example")
    us = ours("pod-a")
    assert not us.other.in_the_way()
    assert not us.other.in_the_way()
    assert example.asked == ["GetInfo"]


@pytest.mark.parametrize("error", [errno.EIO, errno.EMFILE, errno.EACCES])
def test_registry_that_cannot_be_read_changes_nothing(
    ours: MakeOurs, other: MakeOther, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    other()
    us = ours("pod-a")
    assert us.other.in_the_way()

    def fail(_: object) -> list[str]:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(other_driver.os, "listdir", fail)
    assert us.other.in_the_way()
    assert us.events.reasons() == [EVENT]


def test_registry_that_goes_away_takes_the_other_driver_with_it(
    ours: MakeOurs, other: MakeOther, registry: Path
) -> None:
    us = ours("pod-a")
    us.plugin.start()
    nvidias = other()
    wait_until(lambda: us.other.aside)
    gone = registry.rename(registry.with_name("gone"))
    wait_until(lambda: "is missing or no directory" in us.condition("registration")[1])
    registry.mkdir()
    wait_until(us.plugin._registrar.in_place)
    register(us.registration)
    assert us.plugin.registered
    nvidias.registration = gone / nvidias.registration.name


def restart(driver: OtherDraDriver, us: Ours, looks_away: int = 1) -> list[bool]:
    """It leaves, and comes back later; what this driver does in between."""
    driver.stop()
    seen = [us.other.in_the_way() for _ in range(looks_away)]
    driver.start()
    return [*seen, us.other.in_the_way()]


def test_driver_that_restarts_again_and_again_is_stood_aside_for_all_the_time(ours: MakeOurs, other: MakeOther) -> None:
    nvidias = other()
    us = ours("pod-a")
    assert us.other.in_the_way()
    assert restart(nvidias, us) == [False, True]
    for _ in range(10):
        assert restart(nvidias, us) == [True, True]
    assert us.events.reasons() == [EVENT, EVENT]
    assert "until it has been away for 10 s, since it comes and goes" in us.condition()[1]


def test_driver_that_comes_and_goes_has_left_when_it_is_away_for_longer_each_time(
    ours: MakeOurs, other: MakeOther
) -> None:
    nvidias = other()
    us = ours("pod-a")
    waits = []
    for _ in range(8):
        assert us.other.in_the_way()
        nvidias.stop()
        since = us.clock.now
        while us.other.in_the_way():
            assert not us.condition()[0]
            assert "until it has been away for" in us.condition()[1]
        waits.append(us.clock.now - since)
        assert us.condition()[0]
        nvidias.start()
    assert waits[0] < 5
    assert [10 * 2**n <= wait < 10 * 2**n + 9 for n, wait in enumerate(waits[1:6])] == [True] * 5
    assert all(300 <= wait < 310 for wait in waits[6:])


def test_driver_that_comes_back_after_a_long_time_is_a_new_one(ours: MakeOurs, other: MakeOther) -> None:
    nvidias = other()
    us = ours("pod-a")
    for _ in range(3):
        assert us.other.in_the_way()
        nvidias.stop()
        assert not us.other.in_the_way()
        us.clock.now += 601
        assert not us.other.in_the_way()
        nvidias.start()


def test_driver_with_other_sockets_each_time_is_told_once_a_minute(ours: MakeOurs, other: MakeOther) -> None:
    us = ours("pod-a")
    for number in range(12):
        nvidias = other(pod_uid=f"{number}")
        assert us.other.in_the_way()
        assert f"gpu.nvidia.com-{number}-reg.sock answers" in us.condition()[1]
        nvidias.stop()
    assert us.events.reasons() == [EVENT]
    us.clock.now += 60
    other(pod_uid="last")
    assert us.other.in_the_way()
    assert us.events.reasons() == [EVENT, EVENT]


# Rolling updates beside it.


def test_driver_with_a_pods_sockets_is_no_older_instance_for_one_that_stands_by(
    ours: MakeOurs, other: MakeOther
) -> None:
    old, new = ours("old"), ours("new")
    assert old.instance.may_publish()
    other(pod_uid="nvidias")
    assert [us.other.in_the_way() for us in (old, new)] == [True, True]


def test_two_instances_stand_aside_and_come_back_together(ours: MakeOurs, other: MakeOther) -> None:
    both = ours("old"), ours("new")
    for us in both:
        us.plugin.start()
        register(us.registration)
    nvidias = other(pod_uid="nvidias")
    wait_until(lambda: all(us.other.aside for us in both))
    wait_until(lambda: list(nvidias.registration.parent.iterdir()) == [nvidias.registration])
    nvidias.stop()
    wait_until(lambda: all(us.plugin._registrar.in_place() for us in both))
    for us in both:
        register(us.registration)
        assert us.plugin.registered


def test_older_instance_is_asked_again_once_the_lock_is_free(ours: MakeOurs, other: MakeOther) -> None:
    """Another that looks like one is found as soon as no older instance can be there."""
    old, new = ours("old"), ours("new")
    assert old.instance.may_publish()
    other(pod_uid="like-ours", versions=registration.VERSIONS)
    assert not new.other.in_the_way()
    old.stop()
    assert new.other.in_the_way()


def test_older_instance_that_is_killed_while_it_is_asked_does_not_count(short_path: Path) -> None:
    registry = short_path / "registry"
    registry.mkdir()
    old = OtherDraDriver(registry, short_path / "plugins", pod_uid="old", versions=registration.VERSIONS).start()
    events = FakeEvents()

    def lock_is_free() -> bool:
        old.die()
        return True

    own = Sockets.of(registry, short_path / "plugins" / names.DRIVER_NAME, "new")
    looking = OtherDriver(own, Conditions(()), events, refuse=True, sole=lock_is_free)
    assert not looking.in_the_way()
    assert events.written == []
