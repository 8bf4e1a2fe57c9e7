"""A driver of our name beside us, on real sockets: told from our own instances, stood aside for, until it has left."""

import os
from pathlib import Path

import pytest

from dra_driver.kubelet import registration
from dra_driver.kubelet.other_driver import EVENT
from dra_driver.kubelet.plugin import KubeletPlugin, Sockets
from dra_driver.observe.readiness import Conditions
from tests.grpc.helpers import Remembering, Service, claim, get_info, prepare, register, services, wait_until
from tests.grpc.instances import MakeOther, MakeOurs


def test_driver_of_the_same_name_is_told_with_its_socket_and_what_to_do(ours: MakeOurs, other: MakeOther) -> None:
    nvidias = other()
    us = ours("pod-a")
    assert us.other.in_the_way()
    ok, message = us.condition()
    assert not ok
    assert f"{nvidias.registration} answers with endpoint {nvidias.dra} (v1.DRAPlugin, v1beta1.DRAPlugin)" in message
    assert "offers nothing" in message
    assert "its DaemonSet" in message
    assert "--device-plugin-conflict" in message
    assert us.other.in_the_way()
    assert us.events.written == [("Warning", EVENT, message)]


def test_it_is_over_when_the_other_driver_has_left(ours: MakeOurs, other: MakeOther) -> None:
    nvidias = other()
    us = ours("pod-a")
    assert us.other.in_the_way()
    nvidias.stop()
    assert not us.other.in_the_way()
    assert not us.other.aside
    assert us.condition() == (True, "no other driver is registered as gpu.nvidia.com here any more")


def test_socket_that_a_killed_driver_left_behind_is_nobody(ours: MakeOurs, other: MakeOther) -> None:
    nvidias = other()
    us = ours("pod-a")
    assert us.other.in_the_way()
    nvidias.die()
    assert nvidias.registration.is_socket()
    assert not us.other.in_the_way()


def test_driver_that_only_warns_is_not_in_the_way(ours: MakeOurs, other: MakeOther) -> None:
    other()
    us = ours("pod-a", refuse=False)
    assert not us.other.in_the_way()
    ok, message = us.condition()
    assert ok
    assert "GPUs may be used twice" in message
    assert us.events.reasons() == [EVENT]


def test_driver_with_our_sockets_is_in_the_way_even_when_we_only_warn(ours: MakeOurs, other: MakeOther) -> None:
    other()
    us = ours(refuse=False)
    assert us.other.in_the_way()


def test_one_that_was_seen_and_is_silent_now_is_still_there(
    ours: MakeOurs, other: MakeOther, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dra_driver.kubelet.other_driver._ASK_SECONDS", 0.1)
    nvidias = other()
    us = ours("pod-a")
    nvidias.silent.set()
    assert not us.other.in_the_way()
    nvidias.silent.clear()
    assert us.other.in_the_way()
    nvidias.silent.set()
    assert us.other.in_the_way()
    assert us.events.reasons() == [EVENT]


def test_driver_of_another_name_does_not_count(ours: MakeOurs, other: MakeOther) -> None:
    other(name="gpu.nvidia.com.example")
    us = ours("pod-a")
    assert not us.other.in_the_way()
    assert us.condition() == (True, "")


def test_registry_that_is_not_there_yet_has_nobody(ours: MakeOurs, short_path: Path) -> None:
    us = ours("pod-a")
    (short_path / "registry").rmdir()
    assert not us.other.in_the_way()


def test_two_instances_of_a_rolling_update_do_not_count(ours: MakeOurs) -> None:
    old, new = ours("old"), ours("new")
    assert old.instance.may_publish()
    old.plugin.start()
    new.plugin.start()
    assert [us.other.in_the_way() for us in (old, new)] == [False, False]
    for us in (old, new):
        register(us.registration)
        assert us.plugin.registered


def test_instance_of_an_older_version_that_marks_nothing_does_not_count(
    ours: MakeOurs, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = ours("old"), ours("new")
    assert old.instance.may_publish()
    monkeypatch.setattr(registration, "INSTANCE", "x-another")
    old.plugin.start()
    assert not new.other.in_the_way()


def test_driver_with_a_pods_sockets_counts_where_no_instance_of_ours_is(ours: MakeOurs, other: MakeOther) -> None:
    other(pod_uid="nvidias")
    assert ours("pod-a").other.in_the_way()


def test_instance_with_another_plugin_folder_counts(ours: MakeOurs, short_path: Path) -> None:
    us = ours("pod-a")
    elsewhere = KubeletPlugin(
        Sockets.of(short_path / "registry", short_path / "elsewhere", "pod-b"),
        services(Service()),
        Remembering(),
        Conditions(()),
    )
    elsewhere.start()
    assert us.other.in_the_way()
    elsewhere.stop(0)


def test_own_socket_is_asked_once_and_the_kubelets_question_is_still_awaited(ours: MakeOurs) -> None:
    us = ours("pod-a")
    us.plugin.start()
    assert not us.other.in_the_way()
    assert "waiting for the kubelet to ask" in us.condition("registration")[1]
    info = get_info(us.registration)
    assert info.name == "gpu.nvidia.com"


@pytest.mark.parametrize("pod_uid", ["", "pod-a"])
def test_plugin_that_starts_beside_another_touches_no_socket_of_it_and_registers_when_it_has_left(
    ours: MakeOurs, other: MakeOther, pod_uid: str
) -> None:
    nvidias = other()
    before = [os.stat(path) for path in (nvidias.registration, nvidias.dra)]
    us = ours(pod_uid)
    us.plugin.start()
    assert us.condition("registration") == (False, "not registered beside another driver for gpu.nvidia.com")
    assert [os.stat(path) for path in (nvidias.registration, nvidias.dra)] == before
    assert sorted(path.name for path in us.registration.parent.iterdir()) == ["gpu.nvidia.com-reg.sock"]
    nvidias.stop()
    wait_until(us.plugin._registrar.in_place)
    assert prepare(Path(register(us.registration).endpoint), claim("uid-1"))["uid-1"].error == ""
    assert us.plugin.registered


@pytest.mark.parametrize("pod_uid", ["", "pod-a"])
def test_plugin_deregisters_when_another_comes_and_registers_again_when_it_has_left(
    ours: MakeOurs, other: MakeOther, pod_uid: str
) -> None:
    us = ours(pod_uid)
    us.plugin.start()
    register(us.registration)
    nvidias = other()
    wait_until(lambda: us.condition("registration")[1].startswith("not registered beside another"))
    assert not us.plugin.registered
    assert [path for path in us.registration.parent.iterdir() if path != nvidias.registration] == []
    nvidias.stop()
    wait_until(us.plugin._registrar.in_place)
    assert register(us.registration).endpoint == str(us.dra)
    wait_until(lambda: us.plugin.registered)


def test_claims_are_still_answered_over_a_connection_while_the_plugin_stands_aside(
    ours: MakeOurs, other: MakeOther
) -> None:
    us = ours("pod-a")
    us.plugin.start()
    other()
    wait_until(lambda: us.other.aside)
    assert prepare(us.dra, claim("uid-1"))["uid-1"].error == ""
