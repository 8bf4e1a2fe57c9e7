import os
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dra_driver.kubelet.plugin import KubeletPlugin, Sockets, WatchTimes
from dra_driver.model.errors import SettingError, StateError
from dra_driver.observe.readiness import Conditions
from tests.grpc.helpers import Remembering, Service, claim, get_info, prepare, register, services, unprepare, wait_until

TIMES = WatchTimes(poll=0.02, longest_wait=0.05, unasked=60)
MakePlugin = Callable[..., KubeletPlugin]


@pytest.fixture
def registry(short_path: Path) -> Path:
    path = short_path / "plugins_registry"
    path.mkdir()
    return path


@pytest.fixture
def conditions() -> Conditions:
    return Conditions(["registration"])


@pytest.fixture
def make_plugin(
    short_path: Path, registry: Path, service: Service, recorder: Remembering, conditions: Conditions
) -> Iterator[MakePlugin]:
    made: list[KubeletPlugin] = []

    def make(pod_uid: str | None = None, times: WatchTimes = TIMES) -> KubeletPlugin:
        directory = short_path / "plugins" / "gpu.nvidia.com"
        sockets = Sockets.of(registry, directory, pod_uid)
        made.append(KubeletPlugin(sockets, services(service), recorder, conditions, times))
        return made[-1]

    yield make
    for plugin in made:
        plugin.stop(0)


@pytest.fixture
def plugin(make_plugin: MakePlugin) -> KubeletPlugin:
    plugin = make_plugin()
    plugin.start()
    return plugin


def message(conditions: Conditions) -> str:
    return str(conditions.report()["conditions"]["registration"]["message"])


def test_sockets_have_the_names_that_nvidias_driver_uses(plugin: KubeletPlugin, short_path: Path) -> None:
    assert plugin.registration_socket == short_path / "plugins_registry" / "gpu.nvidia.com-reg.sock"
    assert plugin.dra_socket == short_path / "plugins" / "gpu.nvidia.com" / "dra.sock"
    assert plugin.registration_socket.is_socket()
    assert plugin.dra_socket.is_socket()


def test_kubelet_finds_the_dra_socket_through_the_registration(plugin: KubeletPlugin) -> None:
    info = register(plugin.registration_socket)

    answers = prepare(Path(info.endpoint), claim("uid-1"))
    unprepared = unprepare(Path(info.endpoint), claim("uid-1"))

    assert len(answers["uid-1"].devices) == 1
    assert unprepared["uid-1"].error == ""


def test_endpoint_is_absolute_when_the_directory_is_relative(
    short_path: Path,
    registry: Path,
    service: Service,
    recorder: Remembering,
    conditions: Conditions,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(short_path)

    sockets = Sockets.of(Path(registry.name), Path("plugins"))
    plugin = KubeletPlugin(sockets, services(service), recorder, conditions)

    assert plugin.dra_socket == short_path / "plugins" / "dra.sock"


def test_registered_and_ready_after_the_kubelet_registered(plugin: KubeletPlugin, conditions: Conditions) -> None:
    register(plugin.registration_socket)

    assert plugin.registered
    assert conditions.ready


def test_second_instance_is_refused_and_the_first_stays_whole(plugin: KubeletPlugin, make_plugin: MakePlugin) -> None:
    with pytest.raises(StateError, match="another instance is serving"):
        make_plugin().start()

    assert prepare(plugin.dra_socket, claim("uid-1"))["uid-1"].error == ""
    assert get_info(plugin.registration_socket).name == "gpu.nvidia.com"


def test_no_dra_socket_is_left_when_the_registration_socket_is_taken(make_plugin: MakePlugin, registry: Path) -> None:
    plugin = make_plugin()
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(plugin.registration_socket))
        other.listen()
        with pytest.raises(StateError, match="another instance is serving"):
            plugin.start()

    assert not plugin.dra_socket.exists()


def test_two_pods_serve_side_by_side_during_a_rolling_update(make_plugin: MakePlugin) -> None:
    old, new = make_plugin("5f0c-old"), make_plugin("77aa-new")
    old.start()
    new.start()

    assert old.registration_socket.name == "gpu.nvidia.com-5f0c-old-reg.sock"
    assert old.dra_socket.name == "dra-5f0c-old.sock"
    for pod in (old, new):
        assert prepare(Path(register(pod.registration_socket).endpoint), claim("uid-1"))["uid-1"].error == ""


def test_new_pod_goes_on_when_the_old_one_stops(make_plugin: MakePlugin) -> None:
    old, new = make_plugin("old"), make_plugin("new")
    old.start()
    new.start()

    old.stop(0)

    assert not old.dra_socket.exists()
    assert prepare(Path(register(new.registration_socket).endpoint), claim("uid-1"))["uid-1"].error == ""


def _left_by_killed(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(path))
        killed.listen()


def test_sockets_of_killed_pods_are_removed_at_start(make_plugin: MakePlugin, registry: Path) -> None:
    plugin = make_plugin("new")
    plugins = plugin.dra_socket.parent
    plugins.mkdir(parents=True)
    _left_by_killed(registry / "gpu.nvidia.com-gone-reg.sock")
    _left_by_killed(plugins / "dra-gone.sock")

    plugin.start()

    assert [path.name for path in registry.iterdir()] == ["gpu.nvidia.com-new-reg.sock"]
    assert [path.name for path in plugins.iterdir()] == ["dra-new.sock"]


def test_sockets_of_a_driver_that_was_killed_while_it_started_are_removed(
    make_plugin: MakePlugin, registry: Path
) -> None:
    plugin = make_plugin()
    plugins = plugin.dra_socket.parent
    plugins.mkdir(parents=True)
    for folder in (registry, plugins):
        _left_by_killed(folder / ".0a1b2c")

    plugin.start()

    assert [path.name for path in registry.iterdir()] == ["gpu.nvidia.com-reg.sock"]
    assert [path.name for path in plugins.iterdir()] == ["dra.sock"]


def test_what_is_served_or_not_ours_or_no_socket_stays_at_start(make_plugin: MakePlugin, registry: Path) -> None:
    old, new = make_plugin("old"), make_plugin("new")
    old.start()
    foreign = registry / "nic.example.com-gone-reg.sock"
    _left_by_killed(foreign)
    no_socket = registry / "gpu.nvidia.com-file-reg.sock"
    no_socket.touch()

    new.start()

    assert all(path.exists() for path in (foreign, no_socket, old.registration_socket, old.dra_socket))
    assert prepare(old.dra_socket, claim("uid-1"))["uid-1"].error == ""


@pytest.mark.parametrize("pod_uid", ["../x", "a/b", "a" * 64, "a b"])
def test_pod_uid_that_cannot_be_part_of_a_file_name_is_refused(make_plugin: MakePlugin, pod_uid: str) -> None:
    with pytest.raises(SettingError, match="pod UID"):
        make_plugin(pod_uid)


def test_registration_socket_comes_back_when_it_vanishes(plugin: KubeletPlugin, conditions: Conditions) -> None:
    register(plugin.registration_socket)

    plugin.registration_socket.unlink()
    wait_until(plugin.registration_socket.exists)

    assert not conditions.ready
    register(plugin.registration_socket)
    assert conditions.ready


def test_dra_socket_comes_back_and_the_kubelet_is_made_to_look_again(plugin: KubeletPlugin) -> None:
    register(plugin.registration_socket)
    before = plugin.registration_socket.stat().st_ino

    plugin.dra_socket.unlink()
    wait_until(plugin.dra_socket.exists)
    wait_until(lambda: plugin.registration_socket.stat().st_ino != before)

    assert prepare(Path(register(plugin.registration_socket).endpoint), claim("uid-1"))["uid-1"].error == ""


def test_call_in_flight_ends_well_when_the_dra_socket_is_replaced(
    plugin: KubeletPlugin, service: Service, recorder: Remembering
) -> None:
    go_on = threading.Event()
    service.on["uid-1"] = go_on.wait
    answers: list[str] = []
    caller = threading.Thread(target=lambda: answers.extend(prepare(plugin.dra_socket, claim("uid-1"))))
    caller.start()
    wait_until(lambda: recorder.now["prepare"] == 1)

    plugin.dra_socket.unlink()
    wait_until(plugin.dra_socket.exists)
    go_on.set()
    caller.join()

    assert answers == ["uid-1"]


def test_kubelets_directory_gone_is_told_naming_it_and_the_flag(
    plugin: KubeletPlugin, registry: Path, conditions: Conditions
) -> None:
    register(plugin.registration_socket)

    shutil.rmtree(registry)
    wait_until(lambda: not conditions.ready)

    assert str(registry) in message(conditions)
    assert "--kubelet-registrar-directory-path" in message(conditions)
    assert prepare(plugin.dra_socket, claim("uid-1"))["uid-1"].error == ""


def test_plugin_registers_again_when_the_kubelets_directory_comes_back(
    plugin: KubeletPlugin, registry: Path, conditions: Conditions
) -> None:
    register(plugin.registration_socket)
    shutil.rmtree(registry)
    wait_until(lambda: "is missing" in message(conditions))

    registry.mkdir()
    wait_until(plugin.registration_socket.exists)
    register(plugin.registration_socket)

    assert conditions.ready


def test_start_waits_for_a_kubelet_that_is_not_there_yet(
    make_plugin: MakePlugin, registry: Path, conditions: Conditions
) -> None:
    registry.rmdir()
    plugin = make_plugin()

    plugin.start()
    assert str(registry) in message(conditions)
    registry.mkdir()
    wait_until(plugin.registration_socket.exists)

    assert register(plugin.registration_socket).name == "gpu.nvidia.com"


def test_plugin_directory_gone_is_made_again(plugin: KubeletPlugin) -> None:
    shutil.rmtree(plugin.dra_socket.parent)
    wait_until(plugin.dra_socket.exists)

    assert prepare(plugin.dra_socket, claim("uid-1"))["uid-1"].error == ""


def test_socket_taken_over_by_another_instance_is_left_to_it(plugin: KubeletPlugin, conditions: Conditions) -> None:
    register(plugin.registration_socket)
    with socket.socket(socket.AF_UNIX) as other:
        taken = plugin.dra_socket.with_name("other")
        other.bind(str(taken))
        other.listen()
        taken.rename(plugin.dra_socket)
        theirs = os.stat(plugin.dra_socket).st_ino
        wait_until(lambda: "another instance is serving" in message(conditions))

        assert os.stat(plugin.dra_socket).st_ino == theirs


def test_nobody_asking_is_told_naming_the_socket(
    make_plugin: MakePlugin, conditions: Conditions, caplog: pytest.LogCaptureFixture
) -> None:
    plugin = make_plugin(times=WatchTimes(poll=0.02, longest_wait=0.05, unasked=0.05))

    plugin.start()
    wait_until(lambda: "no kubelet has asked" in message(conditions))

    assert str(plugin.registration_socket) in message(conditions)
    assert sum("no kubelet has asked" in text for text in caplog.messages if "condition" not in text) == 1


def test_stop_removes_both_sockets_and_is_told_in_readiness(plugin: KubeletPlugin, conditions: Conditions) -> None:
    register(plugin.registration_socket)

    plugin.stop(0)

    assert not plugin.registration_socket.exists()
    assert not plugin.dra_socket.exists()
    assert not conditions.ready


def test_stop_deregisters_before_calls_in_flight_end(
    plugin: KubeletPlugin, service: Service, recorder: Remembering
) -> None:
    go_on = threading.Event()
    service.on["uid-1"] = go_on.wait
    answers: list[str] = []
    caller = threading.Thread(target=lambda: answers.extend(prepare(plugin.dra_socket, claim("uid-1"))))
    caller.start()
    wait_until(lambda: recorder.now["prepare"] == 1)
    stopper = threading.Thread(target=plugin.stop, args=(10,))
    stopper.start()

    wait_until(lambda: not plugin.registration_socket.exists())
    assert answers == []
    go_on.set()
    stopper.join()
    caller.join()

    assert answers == ["uid-1"]


def test_instance_that_was_killed_leaves_nothing_in_the_way(
    make_plugin: MakePlugin, registry: Path, short_path: Path
) -> None:
    plugin = make_plugin()
    plugin.dra_socket.parent.mkdir(parents=True)
    for path in (plugin.registration_socket, plugin.dra_socket):
        with socket.socket(socket.AF_UNIX) as killed:
            killed.bind(str(path))
            killed.listen()

    plugin.start()

    assert prepare(Path(register(plugin.registration_socket).endpoint), claim("uid-1"))["uid-1"].error == ""
