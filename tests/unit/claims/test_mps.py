"""Claims that MPS serves: what is started and ended, who is refused, and that nothing is left of what was half done."""

import threading
from dataclasses import replace
from typing import Any

import pytest

from dra_driver.claims import lifecycle
from dra_driver.claims.daemon_watch import DaemonWatch
from dra_driver.claims.daemons import ClaimDaemons
from dra_driver.claims.recovery import Rebuild
from dra_driver.model.claims import ClaimRef
from dra_driver.model.devices import ComputeMode
from dra_driver.model.errors import (
    ApiError,
    ApiUnreachable,
    BadConfig,
    ControlError,
    ControlRefused,
    DeviceBusy,
    LockTimeout,
    MpsError,
    MpsStarting,
)
from dra_driver.model.mps import MpsDaemon, MpsFolders
from dra_driver.model.plan import Plan
from dra_driver.model.records import ClaimState
from dra_driver.sharing.mps import daemon_id
from dra_driver.sharing.time_slicing import TimeSlicingStrategy
from tests.builders import (
    NODE,
    claim_ref,
    config_entry,
    gpu_config,
    gpu_uuid,
    make_gpu,
    make_inventory,
    make_mig,
    resource_claim,
    result,
    time_slicing,
)
from tests.unit.claims.conftest import Node
from tests.unit.claims.test_killed_sharers import Killed, Killer

U0, U1 = gpu_uuid(0), gpu_uuid(1)
EXCLUSIVE, DEFAULT = ComputeMode.EXCLUSIVE_PROCESS, ComputeMode.DEFAULT
TS_ONLY = {"TimeSlicing": TimeSlicingStrategy()}


def mps(kind: str = "GpuConfig", **config: Any) -> dict[str, Any]:
    return gpu_config({"strategy": "MPS", "mpsConfig": config}, kind)


MPS = config_entry(mps())
LONG = config_entry(time_slicing("Long"))


def id_of(claim: ClaimRef, *uuids: str) -> str:
    return daemon_id(claim.uid, uuids or (U0,))


def reasons(node: Node) -> list[str]:
    return [reason for _, reason, _ in node.events.events]


def assert_nothing_left(node: Node, claim: ClaimRef) -> None:
    assert node.store.get(claim.uid) is None
    assert claim.uid not in node.cdi.files
    assert node.mps.started == {}
    assert node.control.modes.get(U0, DEFAULT) is DEFAULT


# What is started, with what.


def test_claim_has_its_daemon_and_its_card_for_itself(node):
    claim = node.claim(1, [result()], MPS)
    assert node.prepare(claim) == [("gpu-0", U0)]
    daemon = MpsDaemon(id=id_of(claim), devices=(U0,), gpus=(U0,))
    assert node.mps.started == {daemon.id: daemon}
    assert node.mps.calls == [("start", daemon.id), ("wait", daemon.id)]
    assert node.control.modes[U0] is EXCLUSIVE
    folders = MpsFolders(pipe=f"/mps/{daemon.id}/pipe", shm=f"/mps/{daemon.id}/shm")
    assert node.cdi.daemons[claim.uid] == {"gpu-0": folders}
    assert node.store.get(claim.uid).state is ClaimState.COMPLETED


def test_no_limit_is_set_unless_it_was_asked_for(node):
    claim = node.claim(1, [result()], MPS)
    node.prepare(claim)
    (daemon,) = node.mps.started.values()
    assert (daemon.thread_percentage, daemon.memory_limits, daemon.multi_user) == (None, (), False)


def test_settings_of_the_config_reach_the_daemon(node):
    config = mps(
        defaultActiveThreadPercentage=50,
        defaultPinnedDeviceMemoryLimit="10Gi",
        defaultPerDevicePinnedMemoryLimit={"1": "1Gi"},
        multiUser=True,
    )
    claim = node.claim(1, [result(), result("gpu-1", "second")], config_entry(config))
    node.prepare(claim)
    assert list(node.mps.started.values()) == [
        MpsDaemon(
            id=id_of(claim, U0, U1),
            devices=(U0, U1),
            gpus=(U0, U1),
            thread_percentage=50,
            memory_limits=((U0, "10240M"), (U1, "1024M")),
            multi_user=True,
        )
    ]
    assert node.control.modes == {U0: EXCLUSIVE, U1: EXCLUSIVE}


def test_percentage_of_0_is_no_limit_as_the_daemon_reads_it(node):
    node.prepare(node.claim(1, [result()], config_entry(mps(defaultActiveThreadPercentage=0))))
    (daemon,) = node.mps.started.values()
    assert daemon.thread_percentage is None


def test_each_config_of_a_claim_has_a_daemon_of_its_own(node):
    entries = (config_entry(mps(defaultActiveThreadPercentage=20), "a"), config_entry(mps(), "b"))
    claim = node.claim(1, [result("gpu-0", "a"), result("gpu-1", "b")], *entries)
    node.prepare(claim)
    assert {d.devices: d.thread_percentage for d in node.mps.started.values()} == {(U0,): 20, (U1,): None}
    node.lifecycle.unprepare(claim)
    assert_nothing_left(node, claim)


def test_time_slicing_and_mps_in_one_claim_are_for_two_cards(node):
    entries = (config_entry(time_slicing("Long"), "ts"), config_entry(mps(), "mps"))
    claim = node.claim(1, [result("gpu-0", "ts"), result("gpu-1", "mps")], *entries)
    node.prepare(claim)
    assert node.control.slices == {U0: 3}
    assert node.control.modes == {U1: EXCLUSIVE}
    assert node.cdi.daemons[claim.uid].keys() == {"gpu-1"}
    node.lifecycle.unprepare(claim)
    assert (node.control.slices, node.control.modes) == ({U0: 0}, {U1: DEFAULT})


def test_mig_device_leaves_the_mode_of_its_card_alone(node):
    card = make_gpu(0, mig_enabled=True)
    mig = make_mig(card)
    node.inventory = make_inventory(1, (mig,))
    claim = node.claim(1, [result(mig.name)], config_entry(mps("MigDeviceConfig", multiUser=True)))
    node.prepare(claim)
    assert [(d.devices, d.gpus) for d in node.mps.started.values()] == [((mig.uuid,), ())]
    node.lifecycle.unprepare(claim)
    assert node.control.calls == []
    assert_nothing_left(node, claim)


# Who is refused, and before anything is done.


def assert_untouched(node: Node, claim: ClaimRef) -> None:
    assert node.mps.calls == []
    assert node.control.calls == []
    assert node.store.get(claim.uid) is None


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (mps(defaultPinnedDeviceMemoryLimit="1M"), "invalid limit: default value set too low: 1M"),
        (mps(defaultPerDevicePinnedMemoryLimit={"1": "1Gi"}), "invalid device: invalid device index: 1"),
        (mps(defaultPerDevicePinnedMemoryLimit={"GPU-x": "1Gi"}), "unable to parse key as an integer: GPU-x"),
        (mps(defaultPerDevicePinnedMemoryLimit={"0": "1k"}), "invalid limit: value set too low: 0: 1k"),
    ],
)
def test_config_that_does_not_fit_its_devices(node, config, words):
    claim = node.claim(1, [result()], config_entry(config))
    with pytest.raises(BadConfig) as caught:
        node.prepare(claim)
    assert words in str(caught.value)
    assert "devices gpu-0" in str(caught.value)
    assert_untouched(node, claim)


@pytest.mark.parametrize(("capability", "shown"), [("6.0", "6.0"), ("", "unknown")])
def test_multi_user_needs_compute_capability_7(node, capability, shown):
    old = make_gpu(0, product_name="Tesla P100", cuda_compute_capability=capability)
    node.inventory = type(node.inventory)(driver=node.inventory.driver, gpus=(old,))
    claim = node.claim(1, [result()], config_entry(mps(multiUser=True)))
    with pytest.raises(BadConfig, match=f"multiUser is true, and device gpu-0 .* has compute capability {shown}"):
        node.prepare(claim)
    assert_untouched(node, claim)
    assert node.prepare(node.claim(2, [result()], MPS)) == [("gpu-0", U0)]


def test_shares_and_mps_do_not_go_together(node):
    claim = node.claim(1, [result(shareID="s-1", consumedCapacity={"shares": "1"})], MPS)
    with pytest.raises(BadConfig, match="MPS sharing is not supported when consumable shares is enabled"):
        node.prepare(claim)
    assert_untouched(node, claim)


def test_admin_access_has_no_daemon(node):
    claim = node.claim(1, [result(adminAccess=True)], MPS)
    with pytest.raises(BadConfig, match="adminAccess and with a sharing config"):
        node.prepare(claim)
    assert_untouched(node, claim)


def test_admin_access_leaves_the_daemon_of_the_owner_alone(node):
    owner, looker = node.claim(1, [result()], MPS), node.claim(2, [result(adminAccess=True)])
    node.prepare(owner)
    node.prepare(looker)
    node.lifecycle.unprepare(looker)
    assert node.mps.started.keys() == {id_of(owner)}
    assert node.control.modes[U0] is EXCLUSIVE


def test_node_without_mps_programs_refuses_before_it_begins(node):
    node.mps.fail_check = [MpsError("nvidia-cuda-mps-control is not there (searched /driver-root: usr/bin)")]
    claim = node.claim(1, [result()], MPS)
    with pytest.raises(MpsError, match="nvidia-cuda-mps-control is not there"):
        node.prepare(claim)
    assert_untouched(node, claim)


def test_observing_driver_refuses_where_the_mode_would_have_to_change(node):
    node.observe_only = True
    node.restart()
    claim = node.claim(1, [result()], MPS)
    with pytest.raises(ControlRefused, match="compute mode EXCLUSIVE_PROCESS on gpu-0"):
        node.prepare(claim)
    assert_untouched(node, claim)


@pytest.mark.parametrize(
    ("first", "second", "words"), [(MPS, LONG, ("MPS", "TimeSlicing")), (LONG, MPS, ("TimeSlicing", "MPS"))]
)
def test_time_slicing_and_mps_never_meet_on_one_card(node, first, second, words):
    holder, late = node.claim(1, [result()], first), node.claim(2, [result()], second)
    node.prepare(holder)
    calls, modes = list(node.mps.calls), dict(node.control.modes)
    with pytest.raises(DeviceBusy) as caught:
        node.prepare(late)
    assert str(holder) in str(caught.value)
    assert f"has it with {words[0]}, and this claim asks for {words[1]}: never both on one GPU" in str(caught.value)
    assert (node.mps.calls, node.control.modes) == (calls, modes)
    node.lifecycle.unprepare(holder)
    assert node.prepare(late) == [("gpu-0", U0)]


def test_two_claims_with_mps_are_refused_as_any_two(node):
    node.prepare(node.claim(1, [result()], MPS))
    with pytest.raises(DeviceBusy) as caught:
        node.prepare(node.claim(2, [result()], MPS))
    assert "never both" not in str(caught.value)


def test_part_of_a_device_without_a_share_id_is_a_share_too(node):
    claim = node.claim(1, [result(consumedCapacity={"memory": "1Gi"})], MPS)
    with pytest.raises(BadConfig, match="MPS sharing is not supported when consumable shares is enabled"):
        node.prepare(claim)
    assert_untouched(node, claim)


def test_two_configs_that_are_alike_are_two(node):
    claim = node.claim(
        1, [result("gpu-0", "a"), result("gpu-1", "b")], config_entry(mps(), "a"), config_entry(mps(), "b")
    )
    node.prepare(claim)
    assert {daemon.devices for daemon in node.mps.started.values()} == {(U0,), (U1,)}


def test_card_that_was_set_back_by_somebody_is_left_as_it_is(node):
    claim = node.claim(1, [result()], MPS)
    node.prepare(claim)
    node.control.modes[U0] = DEFAULT
    node.control.calls.clear()
    node.lifecycle.unprepare(claim)
    assert node.control.calls == []


# A daemon that takes its time.


def test_slow_daemon_is_waited_for_over_several_calls(node):
    node.mps.slow = True
    claim = node.claim(1, [result()], MPS)
    for _ in range(2):
        with pytest.raises(MpsStarting, match="its image is being pulled"):
            node.prepare(claim)
        assert node.mps.started.keys() == {id_of(claim)}
        assert node.control.modes[U0] is EXCLUSIVE
        assert node.store.get(claim.uid).state is ClaimState.STARTED
        assert claim.uid not in node.cdi.files
    node.mps.ready.add(id_of(claim))
    assert node.prepare(claim) == [("gpu-0", U0)]
    assert not any(what == "stop" for what, _ in node.mps.calls)
    node.lifecycle.unprepare(claim)
    assert_nothing_left(node, claim)


def test_wait_goes_on_after_a_restart_of_the_driver(node):
    node.mps.slow = True
    claim = node.claim(1, [result()], MPS)
    with pytest.raises(MpsStarting):
        node.prepare(claim)
    node.restart()
    node.mps.slow = False
    assert node.prepare(claim) == [("gpu-0", U0)]
    assert not any(what == "stop" for what, _ in node.mps.calls)


def test_pod_that_goes_while_its_daemon_starts_leaves_nothing(node):
    node.mps.slow = True
    claim = node.claim(1, [result()], MPS)
    with pytest.raises(MpsStarting):
        node.prepare(claim)
    node.lifecycle.unprepare(claim)
    assert_nothing_left(node, claim)


def test_claim_with_another_allocation_since_is_begun_anew(node):
    node.mps.slow = True
    claim = node.claim(1, [result()], MPS)
    with pytest.raises(MpsStarting):
        node.prepare(claim)
    node.mps.slow = False
    node.claim(1, [result("gpu-1")], MPS)
    assert node.prepare(claim) == [("gpu-1", U1)]
    assert node.mps.started.keys() == {id_of(claim, U1)}
    assert node.control.modes == {U0: DEFAULT, U1: EXCLUSIVE}


def test_claim_with_another_config_since_is_begun_anew(node):
    node.mps.slow = True
    claim = node.claim(1, [result()], MPS)
    with pytest.raises(MpsStarting):
        node.prepare(claim)
    node.mps.slow = False
    node.claim(1, [result()], config_entry(mps(defaultActiveThreadPercentage=10)))
    node.prepare(claim)
    assert ("stop", id_of(claim)) in node.mps.calls
    assert [daemon.thread_percentage for daemon in node.mps.started.values()] == [10]


def test_gate_that_is_off_since_ends_what_was_begun(node):
    node.mps.slow = True
    claim = node.claim(1, [result()], MPS)
    with pytest.raises(MpsStarting):
        node.prepare(claim)
    node.strategies = TS_ONLY
    node.restart()
    with pytest.raises(BadConfig, match="MPSSupport=true"):
        node.prepare(claim)
    assert_nothing_left(node, claim)


def test_unprepare_does_not_ask_for_the_gate(node):
    claim = node.claim(1, [result()], MPS)
    node.prepare(claim)
    node.strategies = TS_ONLY
    node.restart()
    node.lifecycle.unprepare(claim)
    assert_nothing_left(node, claim)


def test_other_claims_are_not_kept_waiting(node):
    """Neither a card nor the turn is held while a daemon starts; whoever wants the card is refused."""
    slow, other, late = (
        node.claim(1, [result()], MPS),
        node.claim(2, [result("gpu-1")], LONG),
        node.claim(3, [result()]),
    )
    done: list[object] = []

    def meanwhile() -> None:
        assert not node.turn.taken
        done.append(node.prepare(other))
        with pytest.raises(DeviceBusy, match="its preparation is not finished"):
            node.prepare(late)
        done.append("refused")

    node.mps.on_wait = meanwhile
    assert node.prepare(slow) == [("gpu-0", U0)]
    assert done == [[("gpu-1", U1)], "refused"]


def test_few_calls_wait_at_a_time(node):
    node.inventory = make_inventory(3)
    daemons = ClaimDaemons(node.mps, waiting=1)
    waiting, go = threading.Event(), threading.Event()

    def hold() -> None:
        waiting.set()
        assert go.wait(10)

    node.mps.on_wait = hold
    first = threading.Thread(target=daemons.up, args=([MpsDaemon(id="a-00000", devices=(U0,))], 0.0))
    first.start()
    assert waiting.wait(10)
    with pytest.raises(MpsStarting, match="as are many others"):
        daemons.up([MpsDaemon(id="b-00000", devices=(U1,))], 0.0)
    go.set()
    first.join()
    assert ("start", "b-00000") in node.mps.calls


def test_unprepare_by_another_instance_while_the_daemon_starts(node):
    claim = node.claim(1, [result()], MPS)

    def taken_back_elsewhere() -> None:
        node.mps.stop(id_of(claim), 1)
        node.control.modes[U0] = DEFAULT
        node.store.remove(claim.uid)

    node.mps.on_wait = taken_back_elsewhere
    with pytest.raises(LockTimeout, match="by another instance"):
        node.prepare(claim)
    assert claim.uid not in node.cdi.files


def test_prepare_that_another_instance_has_finished_meanwhile(node):
    claim = node.claim(1, [result()], MPS)

    def finished_elsewhere() -> None:
        record = node.store.get(claim.uid)
        node.store.complete(replace(record, state=ClaimState.COMPLETED), {}, "")

    node.mps.on_wait = finished_elsewhere
    assert node.prepare(claim) == [("gpu-0", U0)]
    assert node.mps.started.keys() == {id_of(claim)}


@pytest.mark.parametrize("change", [{"state": ClaimState.ENDING}, {"plan": Plan()}])
def test_prepare_that_another_instance_has_undone_or_made_another_of_meanwhile(node, change):
    claim = node.claim(1, [result()], MPS)

    def changed_elsewhere() -> None:
        node.store.put(replace(node.store.get(claim.uid), **{"state": ClaimState.COMPLETED} | change))

    node.mps.on_wait = changed_elsewhere
    with pytest.raises(LockTimeout, match="by another instance"):
        node.prepare(claim)
    assert claim.uid not in node.cdi.files


def test_claim_that_was_being_ended_is_ended_before_it_is_begun_again(node):
    claim = node.claim(1, [result()], MPS)
    node.prepare(claim)
    node.store.put(replace(node.store.get(claim.uid), state=ClaimState.ENDING))
    node.mps.calls.clear()
    node.prepare(claim)
    assert [what for what, _ in node.mps.calls] == ["stop", "start", "wait"]


def test_begun_claim_of_which_another_part_has_changed_is_begun_anew(node):
    node.mps.slow = True
    parts = [result("gpu-0", "mps"), result("gpu-1", "ts")]
    claim = node.claim(1, parts, config_entry(mps(), "mps"), config_entry(time_slicing("Long"), "ts"))
    with pytest.raises(MpsStarting):
        node.prepare(claim)
    node.mps.slow = False
    node.claim(1, parts, config_entry(mps(), "mps"), config_entry(time_slicing("Short"), "ts"))
    node.prepare(claim)
    assert node.control.slices[U1] == 1
    assert ("stop", id_of(claim)) in node.mps.calls


def test_begun_claim_whose_config_became_two_is_begun_anew(node):
    node.mps.slow = True
    parts = [result("gpu-0", "a"), result("gpu-1", "b")]
    claim = node.claim(1, parts, MPS)
    with pytest.raises(MpsStarting):
        node.prepare(claim)
    node.mps.slow = False
    node.claim(1, parts, config_entry(mps(), "a"), config_entry(mps(), "b"))
    node.prepare(claim)
    assert {daemon.devices for daemon in node.mps.started.values()} == {(U0,), (U1,)}


def test_card_that_fails_when_a_begun_claim_goes_on_leaves_nothing(node):
    node.mps.slow = True
    claim = node.claim(1, [result()], MPS)
    with pytest.raises(MpsStarting):
        node.prepare(claim)
    errors = [ControlError("not permitted now")]
    node.control.fail_set_compute_mode = lambda uuid: errors.pop() if errors else None
    with pytest.raises(ControlError, match="not permitted now"):
        node.prepare(claim)
    assert_nothing_left(node, claim)


def test_wait_that_fails_leaves_alone_what_another_instance_has_done_meanwhile(node):
    claim = node.claim(1, [result()], MPS)

    def taken_over_elsewhere() -> None:
        node.store.put(replace(node.store.get(claim.uid), state=ClaimState.ENDING))
        node.mps.fail_wait = [MpsError("it was ended")]

    node.mps.on_wait = taken_over_elsewhere
    with pytest.raises(MpsError, match="it was ended"):
        node.prepare(claim)
    assert node.store.get(claim.uid).state is ClaimState.ENDING
    assert not any(what == "stop" for what, _ in node.mps.calls)


def test_unprepare_leaves_alone_what_another_instance_has_done_meanwhile(node):
    claim = node.claim(1, [result()], MPS)
    node.prepare(claim)

    def prepared_anew_elsewhere() -> None:
        node.store.put(replace(node.store.get(claim.uid), state=ClaimState.COMPLETED))

    node.mps.on_stop = prepared_anew_elsewhere
    with pytest.raises(LockTimeout, match="by another instance"):
        node.lifecycle.unprepare(claim)
    assert node.store.get(claim.uid).state is ClaimState.COMPLETED
    assert node.control.modes[U0] is EXCLUSIVE


def test_place_of_a_call_that_waited_is_free_again(node):
    daemons = ClaimDaemons(node.mps, waiting=1)
    for number in range(2):
        daemons.up([MpsDaemon(id=f"{number}-00000", devices=(U0,))], 0.0)
    assert len(node.mps.ready) == 2


# A daemon that does not start, or does not end.


@pytest.mark.parametrize("fail", ["fail_start", "fail_wait"])
def test_daemon_that_cannot_start_leaves_nothing(node, fail):
    setattr(node.mps, fail, [ApiError('POST deployments: HTTP 403: cannot create resource "deployments"', 403)])
    claim = node.claim(1, [result()], MPS)
    with pytest.raises(ApiError, match='cannot create resource "deployments"'):
        node.prepare(claim)
    assert_nothing_left(node, claim)


def test_card_whose_mode_cannot_be_set_gets_no_daemon(node):
    node.control.fail_set_compute_mode = lambda uuid: ControlError("not permitted")
    claim = node.claim(1, [result()], MPS)
    with pytest.raises(ControlError, match="not permitted"):
        node.prepare(claim)
    assert node.mps.calls == []
    assert_nothing_left(node, claim)


def test_failed_prepare_puts_back_the_mode_that_was_found(node):
    node.control.modes[U0] = ComputeMode.PROHIBITED
    node.mps.fail_wait = [MpsError("the daemon died")]
    claim = node.claim(1, [result()], MPS)
    with pytest.raises(MpsError):
        node.prepare(claim)
    assert node.control.modes[U0] is ComputeMode.PROHIBITED


def test_daemon_that_does_not_end_keeps_the_claim_and_its_card(node):
    claim = node.claim(1, [result()], MPS)
    node.prepare(claim)
    node.mps.fail_stop = [MpsError("its pod is still there")]
    with pytest.raises(MpsError, match="still there"):
        node.lifecycle.unprepare(claim)
    assert node.store.get(claim.uid).state is ClaimState.ENDING
    assert node.control.modes[U0] is EXCLUSIVE
    assert claim.uid not in node.cdi.files
    with pytest.raises(DeviceBusy, match="it is being unprepared"):
        node.prepare(node.claim(2, [result()]))
    node.lifecycle.unprepare(claim)
    assert_nothing_left(node, claim)


@pytest.mark.parametrize("error", [MpsError("its pod is still there"), ApiUnreachable("connection refused")])
def test_daemon_that_never_ends_lets_the_pod_go_at_last(node, monkeypatch, error):
    monkeypatch.setattr(lifecycle, "_GIVE_UP_SECONDS", 0.0)
    claim = node.claim(1, [result()], MPS)
    node.prepare(claim)
    node.mps.fail_stop = [error]
    node.lifecycle.unprepare(claim)
    assert node.store.get(claim.uid) is None
    assert node.control.modes[U0] is DEFAULT
    assert reasons(node) == ["MPSDaemonLeft"]


def test_trouble_of_a_prepare_that_succeeded_later_does_not_count_at_unprepare(node, monkeypatch):
    claim = node.claim(1, [result()], MPS)
    node.mps.fail_wait, node.mps.fail_stop = [MpsError("it died")], [MpsError("it does not end")]
    with pytest.raises(MpsError, match="it died"):
        node.prepare(claim)
    node.prepare(claim)
    monkeypatch.setattr(lifecycle, "_GIVE_UP_SECONDS", 0.000001)
    node.mps.fail_stop = [MpsError("its pod is still there")]
    with pytest.raises(MpsError, match="still there"):
        node.lifecycle.unprepare(claim)
    assert reasons(node) == []


def test_second_prepare_starts_a_daemon_that_is_gone(node):
    claim = node.claim(1, [result()], MPS)
    node.prepare(claim)
    node.mps.started.clear()
    assert node.prepare(claim) == [("gpu-0", U0)]
    assert node.mps.started.keys() == {id_of(claim)}


def test_second_prepare_tells_when_another_instance_has_unprepared_the_claim_meanwhile(node):
    claim = node.claim(1, [result()], MPS)
    node.prepare(claim)
    node.mps.ready.clear()
    node.mps.on_wait = lambda: node.store.remove(claim.uid)
    with pytest.raises(LockTimeout, match="by another instance"):
        node.prepare(claim)


# The watch over daemons, and recovery.


def watch(node: Node) -> DaemonWatch:
    return DaemonWatch(node.store.records, node.edges.daemons, node.orphans, node.events)


def test_daemon_that_ended_is_started_again_at_the_second_look(node):
    claim = node.claim(1, [result()], MPS)
    node.prepare(claim)
    watching = watch(node)
    watching.look()
    node.mps.ready.clear()
    watching.look()
    assert node.mps.calls.count(("start", id_of(claim))) == 1
    watching.look()
    assert node.mps.calls.count(("start", id_of(claim))) == 2
    watching.look()
    assert reasons(node) == ["MPSDaemonRestarted"]
    node.mps.ready.add(id_of(claim))
    node.mps.runs[id_of(claim)] = 1
    watching.look()
    watching.look()
    assert reasons(node) == ["MPSDaemonRestarted"]
    node.mps.ready.clear()
    watching.look()
    watching.look()
    assert reasons(node) == ["MPSDaemonRestarted", "MPSDaemonRestarted"]


def test_daemon_that_its_launcher_started_anew_between_two_looks_is_told_of(node):
    claim = node.claim(1, [result()], MPS)
    node.prepare(claim)
    watching = watch(node)
    watching.look()
    node.mps.runs[id_of(claim)] = 1
    watching.look()
    watching.look()
    assert reasons(node) == ["MPSDaemonRestarted"]
    assert node.mps.calls.count(("start", id_of(claim))) == 1


def test_supervisor_that_takes_a_daemon_over_is_no_event(node):
    claim = node.claim(1, [result()], MPS)
    node.prepare(claim)
    watching = watch(node)
    watching.look()
    node.mps.ready.clear()
    watching.look()
    node.mps.ready.add(id_of(claim))
    watching.look()
    assert reasons(node) == []


def test_daemon_without_a_claim_is_ended_and_its_card_given_back(node):
    left = MpsDaemon(id=f"{claim_ref(7).uid}-abcde", devices=(U0,), gpus=(U0,))
    node.mps.started[left.id] = left
    node.control.modes[U0] = EXCLUSIVE
    watch(node).look()
    assert node.mps.started == {}
    assert node.control.modes[U0] is DEFAULT


def test_daemon_without_a_claim_takes_no_card_from_who_has_it_now(node):
    owner = node.claim(1, [result()], MPS)
    node.prepare(owner)
    left = MpsDaemon(id=f"{claim_ref(7).uid}-abcde", devices=(U0,), gpus=(U0,))
    node.mps.started[left.id] = left
    watch(node).look()
    assert node.mps.started.keys() == {id_of(owner)}
    assert node.control.modes[U0] is EXCLUSIVE


def test_daemons_without_a_claim_are_looked_for_now_and_then(node):
    watching = watch(node)
    for _ in range(3):
        watching.look()
    assert node.mps.looked_for == 1


def test_daemon_whose_claim_is_prepared_by_now_is_not_ended(node):
    claim = node.claim(1, [result()], MPS)
    node.prepare(claim)
    (daemon,) = node.mps.started.values()
    assert not node.orphans.end_daemon(daemon)
    assert node.mps.serves(daemon.id)
    assert node.control.modes[U0] is EXCLUSIVE


def test_card_of_a_claim_that_came_while_a_daemon_ended_is_left_alone(node):
    claim = node.claim(1, [result()], MPS)
    node.prepare(claim)
    record = node.store.get(claim.uid)
    (daemon,) = node.mps.started.values()
    node.store.remove(claim.uid)
    node.mps.on_stop = lambda: node.store.put(record)
    assert not node.orphans.end_daemon(daemon)
    assert node.control.modes[U0] is EXCLUSIVE


def test_card_that_cannot_be_given_back_is_tried_again_and_keeps_its_claim(node):
    claim = node.claim(1, [result()], MPS)
    node.prepare(claim)
    errors = [ControlError("busy")]
    node.control.fail_set_compute_mode = lambda uuid: errors.pop() if errors else None
    with pytest.raises(ControlError, match="busy"):
        node.lifecycle.unprepare(claim)
    assert node.store.get(claim.uid).state is ClaimState.ENDING
    node.lifecycle.unprepare(claim)
    assert_nothing_left(node, claim)


def test_daemon_of_a_claim_that_is_ending_is_not_started_again(node):
    claim = node.claim(1, [result()], MPS)
    node.prepare(claim)
    node.store.put(replace(node.store.get(claim.uid), state=ClaimState.ENDING))
    node.mps.ready.clear()
    assert not node.orphans.restart_daemons(claim)
    assert node.mps.calls.count(("start", id_of(claim))) == 1


def test_recovery_takes_over_a_claim_with_its_daemon(node):
    claim = node.claim(1, [result()], MPS)
    node.prepare(claim)
    node.store.remove(claim.uid)
    Rebuild(node.edges, NODE, node.strategies, node.orphans.adopt, node.orphans.discard).run(node.inventory.devices)
    assert [daemon.id for daemon in node.store.get(claim.uid).plan.daemons] == [id_of(claim)]
    watch(node).look()
    assert node.mps.started.keys() == {id_of(claim)}
    node.lifecycle.unprepare(claim)
    assert_nothing_left(node, claim)


def test_claim_taken_over_without_its_gate_leaves_its_daemon_to_the_watch(node):
    claim = node.claim(1, [result()], MPS)
    node.prepare(claim)
    node.store.remove(claim.uid)
    node.strategies = TS_ONLY
    node.restart()
    Rebuild(node.edges, NODE, node.strategies, node.orphans.adopt, node.orphans.discard).run(node.inventory.devices)
    watch(node).look()
    assert node.mps.started.keys() == {id_of(claim)}
    node.lifecycle.unprepare(claim)
    watch(node).look()
    assert_nothing_left(node, claim)


# Killed at any moment.

EFFECTS = (
    "store.put",
    "store.complete",
    "store.remove",
    "control.set_compute_mode",
    "mps.start",
    "mps.wait",
    "mps.stop",
    "cdi.write",
    "cdi.remove",
)
MOMENTS = 2 * (6 + 6)
"""Before and after each effect: put, mode, start, wait, file, complete; put, file (twice), stop, mode, remove."""


def killed(node: Node, monkeypatch: pytest.MonkeyPatch, at: int, *calls: Any) -> bool:
    """Whether the driver was killed at that moment of the calls; it is started again then."""
    killer = Killer(at)
    with monkeypatch.context() as patch:
        for effect in EFFECTS:
            part, name = effect.split(".")
            owner = getattr(node, part)
            patch.setattr(owner, name, killer.around(getattr(owner, name)))
        try:
            for call in calls:
                call()
        except Killed:
            pass
        else:
            return False
    node.restart()
    return True


@pytest.mark.parametrize("at", range(MOMENTS))
@pytest.mark.parametrize("gate_off", [False, True])
def test_pod_that_goes_after_a_kill_at_any_moment_leaves_nothing(node, monkeypatch, at, gate_off):
    claim = node.claim(1, [result()], MPS)
    calls = (lambda: node.lifecycle.prepare(claim), lambda: node.lifecycle.unprepare(claim))
    assert killed(node, monkeypatch, at, *calls)
    if gate_off:
        node.strategies = TS_ONLY
        node.restart()
    node.lifecycle.unprepare(claim)
    watch(node).look()
    assert_nothing_left(node, claim)


@pytest.mark.parametrize("at", range(MOMENTS))
def test_pod_that_stays_after_a_kill_at_any_moment_is_served(node, monkeypatch, at):
    claim = node.claim(1, [result()], MPS)
    calls = (lambda: node.lifecycle.prepare(claim), lambda: node.lifecycle.unprepare(claim))
    assert killed(node, monkeypatch, at, *calls)
    assert node.prepare(claim) == [("gpu-0", U0)]
    assert node.mps.started.keys() == {id_of(claim)}
    assert node.mps.serves(id_of(claim))
    assert node.control.modes[U0] is EXCLUSIVE
    node.lifecycle.unprepare(claim)
    assert_nothing_left(node, claim)


def test_those_were_all_moments(node, monkeypatch):
    claim = node.claim(1, [result()], MPS)
    calls = (lambda: node.lifecycle.prepare(claim), lambda: node.lifecycle.unprepare(claim))
    assert killed(node, monkeypatch, MOMENTS - 1, *calls)
    node.lifecycle.unprepare(claim)
    assert not killed(node, monkeypatch, MOMENTS, *calls)


def test_claim_that_is_gone_is_swept_with_its_daemon(node):
    node.mps.slow = True
    claim = node.claim(1, [result()], MPS)
    with pytest.raises(MpsStarting):
        node.prepare(claim)
    del node.api.objects[claim.uid]
    from dra_driver.claims.sweep import Sweep

    Sweep(node.edges, NODE, node.lifecycle.unprepare, lambda devices: None).run()
    assert_nothing_left(node, claim)


def test_record_with_a_daemon_survives_the_database(node):
    config = mps(defaultActiveThreadPercentage=50, defaultPinnedDeviceMemoryLimit="1Gi", multiUser=True)
    claim = node.claim(1, [result()], config_entry(config))
    node.prepare(claim)
    before = node.store.get(claim.uid)
    node.restart()
    assert node.store.get(claim.uid) == before
    assert before.plan.daemons[0].memory_limits == ((U0, "1024M"),)


def test_claims_object_is_not_needed_to_end_a_daemon(node):
    claim = node.api.add(resource_claim(claim_ref(1), [result()], [MPS]))
    node.prepare(claim)
    node.api.down = True
    node.lifecycle.unprepare(claim)
    assert_nothing_left(node, claim)
