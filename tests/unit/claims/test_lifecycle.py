"""Prepare and unprepare, whole: what is answered, what is touched, what is left."""

import threading

import pytest

from dra_driver.claims import lifecycle
from dra_driver.model.devices import ComputeMode
from dra_driver.model.errors import (
    ApiError,
    ApiUnreachable,
    BadConfig,
    CdiError,
    ClaimNotFound,
    ControlError,
    ControlGone,
    ControlRefused,
    ControlTimeout,
    ControlUnsupported,
    DeviceBusy,
    NotAllocated,
    UnknownDevice,
)
from dra_driver.model.records import ClaimState
from tests.builders import (
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

LONG = config_entry(time_slicing("Long"))
SHORT = config_entry(time_slicing("Short"))
DEFAULT = config_entry(time_slicing("Default"))
U0, U1 = gpu_uuid(0), gpu_uuid(1)


def failing_once(error):
    """A fake's failure hook that fails the first call only."""
    errors = [error]
    return lambda *_: errors.pop() if errors else None


def assert_nothing_left(node, claim):
    assert node.store.get(claim.uid) is None
    assert claim.uid not in node.cdi.files


def test_prepare_answers_the_device_and_writes_its_file(node):
    claim = node.claim(1, [result()])
    (device,) = node.lifecycle.prepare(claim)
    assert (device.device, device.uuid, device.requests) == ("gpu-0", U0, ("gpu",))
    assert device.cdi_ids == (f"k8s.gpu.nvidia.com/claim={claim.uid}-gpu-0",)
    assert node.cdi.files == {claim.uid: ("gpu-0",)}


def test_a_claim_that_asked_for_nothing_never_touches_the_card(node):
    claim = node.claim(1, [result()])
    node.prepare(claim)
    node.lifecycle.unprepare(claim)
    assert (node.control.calls, node.control.reads) == ([], [])


def test_prepare_again_gives_the_same_answer_and_touches_nothing(node):
    claim = node.claim(1, [result("gpu-1")], LONG)
    first = node.lifecycle.prepare(claim)
    calls = list(node.control.calls)
    node.restart()
    assert node.lifecycle.prepare(claim) == first
    assert node.control.calls == calls


def test_prepare_again_writes_a_vanished_file_before_it_answers(node):
    claim = node.claim(1, [result()])
    node.prepare(claim)
    node.cdi.files.clear()
    node.prepare(claim)
    assert node.cdi.files == {claim.uid: ("gpu-0",)}


def test_prepare_again_works_with_the_api_server_down(node):
    claim = node.claim(1, [result()])
    first = node.lifecycle.prepare(claim)
    node.api.down = True
    assert node.lifecycle.prepare(claim) == first


@pytest.mark.parametrize("status", [401, 403])
def test_prepare_again_works_when_the_token_ran_out(node, status):
    claim = node.claim(1, [result()], LONG)
    first = node.lifecycle.prepare(claim)
    node.api.refusal = ApiError(f"GET the claim: HTTP {status}: no", status)
    node.restart()
    assert node.lifecycle.prepare(claim) == first


@pytest.mark.parametrize("status", [401, 403])
def test_a_new_or_half_prepared_claim_with_a_token_that_ran_out_is_an_error_that_says_so(node, status):
    half = node.claim(1, [result()], LONG)
    node.control.fail_set_time_slice = lambda *_: ControlTimeout("no answer")
    with pytest.raises(ControlTimeout):
        node.prepare(half)
    assert node.store.get(half.uid).state is ClaimState.STARTED
    node.api.refusal = ApiError(f"GET the claim: HTTP {status}: no", status)
    for claim in (half, claim_ref(2)):
        with pytest.raises(ApiError, match=f"HTTP {status}"):
            node.prepare(claim)


def test_prepare_again_fails_when_the_api_server_refuses_the_read_for_another_reason(node):
    claim = node.claim(1, [result()])
    node.prepare(claim)
    node.api.refusal = ApiError("GET the claim: HTTP 400: no", 400)
    with pytest.raises(ApiError, match="HTTP 400"):
        node.prepare(claim)


def test_a_new_claim_with_the_api_server_down_is_an_error(node):
    node.api.down = True
    with pytest.raises(ApiUnreachable):
        node.prepare(claim_ref(1))


def test_a_claim_without_devices_of_ours_gets_an_empty_success(node):
    claim = node.claim(1, [{"driver": "nic.example.com", "pool": "p", "device": "eth1", "request": "n"}])
    assert node.prepare(claim) == []
    assert_nothing_left(node, claim)


@pytest.mark.parametrize(
    ("results", "error"),
    [(None, NotAllocated), ([result("gpu-7")], UnknownDevice)],
    ids=["unallocated", "unknown device"],
)
def test_refused_claims_leave_nothing(node, results, error):
    claim = node.api.add(resource_claim(claim_ref(1), results))
    with pytest.raises(error):
        node.prepare(claim)
    assert_nothing_left(node, claim)


def test_an_unknown_device_names_those_there_are(node):
    claim = node.claim(1, [result("gpu-7")])
    with pytest.raises(UnknownDevice, match="allocated device gpu-7 is not on this node \\(it has gpu-0, gpu-1\\)"):
        node.prepare(claim)


def test_a_missing_claim_is_not_found(node):
    with pytest.raises(ClaimNotFound):
        node.prepare(claim_ref(9))


# Time slices and compute mode.


@pytest.mark.parametrize(("interval", "level"), [("Default", 0), ("Short", 1), ("Medium", 2), ("Long", 3)])
def test_the_interval_reaches_the_tool_once(node, interval, level):
    node.prepare(node.claim(1, [result()], config_entry(time_slicing(interval))))
    assert node.control.calls == [("time_slice", U0, level)]


def test_compute_mode_is_set_first_and_only_where_it_differs(node):
    node.control.modes[U0] = ComputeMode.EXCLUSIVE_PROCESS
    node.prepare(node.claim(1, [result("gpu-0"), result("gpu-1", "b")], LONG))
    assert node.control.calls == [
        ("compute_mode", U0, ComputeMode.DEFAULT),
        ("time_slice", U0, 3),
        ("time_slice", U1, 3),
    ]


def test_a_slice_the_card_is_known_to_have_is_not_set_again(node):
    first = node.claim(1, [result()], DEFAULT)
    node.prepare(first)
    node.lifecycle.unprepare(first)
    node.prepare(node.claim(2, [result()], DEFAULT))
    assert node.control.slices_set == [0]


def test_what_is_believed_is_dropped_when_the_driver_was_reloaded(node):
    first = node.claim(1, [result()], DEFAULT)
    node.prepare(first)
    node.lifecycle.unprepare(first)
    node.control.current_epoch = "epoch-2"
    node.prepare(node.claim(2, [result()], DEFAULT))
    assert node.control.slices_set == [0, 0]


def test_a_compute_mode_changed_by_an_admin_is_noticed_at_the_next_prepare(node):
    first = node.claim(1, [result()], LONG)
    node.prepare(first)
    node.lifecycle.unprepare(first)
    node.control.modes[U0] = ComputeMode.PROHIBITED
    node.prepare(node.claim(2, [result()], LONG))
    assert node.control.modes[U0] is ComputeMode.DEFAULT


def test_the_last_user_resets_the_slice(node):
    claim = node.claim(1, [result()], LONG)
    node.prepare(claim)
    node.lifecycle.unprepare(claim)
    assert node.control.slices_set == [3, 0]
    assert_nothing_left(node, claim)


def test_a_default_slice_needs_no_reset(node):
    claim = node.claim(1, [result()], DEFAULT)
    node.prepare(claim)
    node.lifecycle.unprepare(claim)
    assert node.control.slices_set == [0]


def shared(number, share, *configs, node):
    return node.claim(number, [result(shareID=share)], *configs)


def test_sharers_keep_the_slice_until_the_last_leaves_over_a_restart(node):
    a, d = shared(1, "s-1", LONG, node=node), shared(2, "s-2", LONG, node=node)
    monitor = node.claim(3, [result(adminAccess=True)])
    for claim in (a, monitor, d):
        node.prepare(claim)
    assert node.control.slices_set == [3]
    node.lifecycle.unprepare(a)
    node.restart()
    assert node.control.slices_set == [3]
    node.lifecycle.unprepare(d)
    assert node.control.slices_set == [3, 0]
    node.lifecycle.unprepare(monitor)
    assert node.control.slices_set == [3, 0]


def test_sharers_that_disagree_are_refused_naming_the_holder(node):
    node.prepare(shared(1, "s-1", LONG, node=node))
    second = shared(2, "s-2", SHORT, node=node)
    with pytest.raises(DeviceBusy, match=r"conflicting configuration with already prepared claim team-a/claim-1"):
        node.prepare(second)
    assert node.control.slices_set == [3]
    assert_nothing_left(node, second)


def test_configs_that_mean_the_same_agree(node):
    node.prepare(shared(1, "s-1", DEFAULT, node=node))
    bare = config_entry(gpu_config({"strategy": "TimeSlicing", "timeSlicingConfig": {}}))
    node.prepare(shared(2, "s-2", bare, node=node))
    assert node.control.slices_set == [0]


def test_two_shares_of_one_device_in_one_claim_give_one_device_entry_each(node):
    claim = node.claim(1, [result(request="a", shareID="s-1"), result(request="b", shareID="s-2")], LONG)
    assert node.prepare(claim) == [("gpu-0", U0), ("gpu-0", U0)]
    assert node.control.slices_set == [3]


# Conflicts between claims.


def test_a_device_of_another_live_claim_is_refused_naming_the_holder(node):
    node.prepare(node.claim(1, [result()]))
    second = node.claim(2, [result()])
    with pytest.raises(DeviceBusy, match=r"device gpu-0 is already allocated to different claim team-a/claim-1"):
        node.prepare(second)
    assert_nothing_left(node, second)


@pytest.mark.parametrize("admin", [(True, False), (False, True), (True, True)], ids=["first", "second", "both"])
def test_admin_access_on_either_side_is_no_conflict(node, admin):
    node.prepare(node.claim(1, [result(adminAccess=admin[0])]))
    assert node.prepare(node.claim(2, [result(adminAccess=admin[1])])) == [("gpu-0", U0)]


def test_a_started_claim_blocks_others_too(node):
    first = node.claim(1, [result()], LONG)
    node.control.fail_set_time_slice = lambda *_: ControlTimeout("no answer in 10 s")
    with pytest.raises(ControlTimeout):
        node.prepare(first)
    assert node.store.get(first.uid).state is ClaimState.STARTED
    node.restart()
    with pytest.raises(DeviceBusy, match="its preparation is not finished"):
        node.prepare(node.claim(2, [result()]))


def test_one_device_twice_in_a_claim_is_refused(node):
    with pytest.raises(DeviceBusy, match=r"gpu-0 is allocated twice to claim .* \(requests a and b\)"):
        node.prepare(node.claim(1, [result(request="a"), result(request="b")]))


def test_one_device_twice_by_admin_access_is_answered_for_both_requests(node):
    claim = node.claim(1, [result(request="a", adminAccess=True), result(request="b", adminAccess=True)])
    first, second = node.lifecycle.prepare(claim)
    assert first.cdi_ids == second.cdi_ids
    assert (first.requests, second.requests) == (("a",), ("b",))


def test_a_full_gpu_and_a_mig_device_of_the_same_card_exclude_each_other(node):
    node.prepare(node.claim(1, [result()]))
    card = make_gpu(0, mig_enabled=True)
    mig = make_mig(card)
    node.inventory = make_inventory(0, (mig,))
    with pytest.raises(DeviceBusy, match="overlaps with gpu-0 of the same GPU"):
        node.prepare(node.claim(2, [result(mig.name)]))


def test_mig_devices_of_one_card_do_not_exclude_each_other(node):
    card = make_gpu(0, mig_enabled=True)
    first, second = make_mig(card, 0), make_mig(card, 1)
    node.inventory = make_inventory(0, (first, second))
    node.prepare(node.claim(1, [result(first.name)]))
    assert node.prepare(node.claim(2, [result(second.name)])) == [(second.name, second.uuid)]


# Failures and undoing.


def test_a_failing_tool_fails_the_claim_and_undoes_what_was_done(node):
    node.control.modes[U0] = ComputeMode.EXCLUSIVE_PROCESS
    node.control.fail_set_time_slice = failing_once(ControlError("exit code 1"))
    claim = node.claim(1, [result()], LONG)
    with pytest.raises(ControlError, match="exit code 1"):
        node.prepare(claim)
    assert node.control.modes[U0] is ComputeMode.EXCLUSIVE_PROCESS
    assert node.control.slices[U0] == 0
    assert_nothing_left(node, claim)


def test_a_failing_file_write_undoes_the_slice(node):
    node.cdi.fail_write = 1
    claim = node.claim(1, [result()], LONG)
    with pytest.raises(CdiError):
        node.prepare(claim)
    assert node.control.slices_set == [3, 0]
    assert_nothing_left(node, claim)


def test_a_missing_driver_file_refuses_before_any_step(node):
    node.cdi.fail_plan = 1
    claim = node.claim(1, [result()], LONG)
    with pytest.raises(CdiError):
        node.prepare(claim)
    assert node.control.calls == []
    assert_nothing_left(node, claim)


def test_undoing_that_fails_keeps_the_claim_started_and_a_retry_goes_on(node):
    node.control.fail_set_time_slice = lambda *_: ControlTimeout("no answer")
    claim = node.claim(1, [result()], LONG)
    with pytest.raises(ControlTimeout):
        node.prepare(claim)
    assert node.store.get(claim.uid).state is ClaimState.STARTED
    node.control.fail_set_time_slice = lambda *_: None
    assert node.prepare(claim) == [("gpu-0", U0)]
    assert node.store.get(claim.uid).state is ClaimState.COMPLETED
    assert node.control.slices[U0] == 3


def test_unprepare_of_a_started_claim_undoes_and_removes_it(node):
    node.control.fail_set_time_slice = lambda *_: ControlTimeout("no answer")
    claim = node.claim(1, [result()], LONG)
    with pytest.raises(ControlTimeout):
        node.prepare(claim)
    node.control.fail_set_time_slice = lambda *_: None
    node.lifecycle.unprepare(claim)
    assert node.control.slices[U0] == 0
    assert_nothing_left(node, claim)


def test_a_gpu_without_time_slices_fails_the_claim_that_asks_and_no_other(node):
    node.control.fail_set_time_slice = lambda uuid, _: (
        ControlUnsupported(f"GPU {uuid}: not supported") if uuid == U0 else None
    )
    assert node.prepare(node.claim(1, [result()])) == [("gpu-0", U0)]
    node.lifecycle.unprepare(claim_ref(1))
    for number, config in ((2, DEFAULT), (3, LONG)):
        with pytest.raises(ControlUnsupported, match=U0):
            node.prepare(node.claim(number, [result()], config))
        assert node.store.get(claim_ref(number).uid) is None
    assert node.prepare(node.claim(4, [result("gpu-1")], LONG)) == [("gpu-1", U1)]


def test_a_reset_that_fails_keeps_the_record_for_the_next_call(node):
    claim = node.claim(1, [result()], LONG)
    node.prepare(claim)
    node.control.fail_set_time_slice = failing_once(ControlTimeout("no answer"))
    with pytest.raises(ControlTimeout):
        node.lifecycle.unprepare(claim)
    assert node.store.get(claim.uid) is not None
    node.lifecycle.unprepare(claim)
    assert node.control.slices[U0] == 0
    assert_nothing_left(node, claim)


@pytest.mark.parametrize("error", [ControlGone("driver not loaded"), ControlUnsupported("no such setting")])
def test_unprepare_succeeds_when_nothing_is_left_to_reset(node, error):
    claim = node.claim(1, [result()], LONG)
    node.prepare(claim)
    node.control.fail_set_time_slice = lambda *_: error
    node.lifecycle.unprepare(claim)
    assert_nothing_left(node, claim)
    node.control.fail_set_time_slice = lambda *_: None
    node.prepare(node.claim(2, [result()], LONG))
    assert node.control.slices_set == [3, 0, 3]


# Unprepare from the record alone.


def test_unprepare_needs_neither_the_claim_nor_the_api_server(node):
    claim = node.claim(1, [result()], LONG)
    node.prepare(claim)
    node.api.objects.clear()
    node.api.down = True
    reads = node.api.reads
    node.lifecycle.unprepare(claim)
    node.lifecycle.unprepare(claim)
    node.lifecycle.unprepare(claim_ref(99))
    assert node.api.reads == reads
    assert_nothing_left(node, claim)


def test_unprepare_removes_a_stray_file_of_an_unknown_claim(node):
    node.cdi.files[claim_ref(5).uid] = ("gpu-0",)
    node.lifecycle.unprepare(claim_ref(5))
    assert node.cdi.files == {}


def test_a_claim_allocated_anew_under_its_uid_gets_the_new_device(node):
    claim = node.claim(1, [result("gpu-0")], LONG)
    node.prepare(claim)
    node.claim(1, [result("gpu-1")])
    assert node.prepare(claim) == [("gpu-1", U1)]
    assert node.control.slices[U0] == 0


# Cards that move.


def test_a_name_that_now_means_another_card_is_refused(node):
    claim = node.claim(1, [result("gpu-1")])
    node.prepare(claim)
    node.inventory = make_inventory(0)
    swapped = (make_gpu(0, uuid=U1), make_gpu(1, uuid=U0))
    node.inventory = type(node.inventory)(driver=node.inventory.driver, gpus=swapped)
    with pytest.raises(UnknownDevice, match=f"was {U1} when it was prepared and is {U0} now"):
        node.prepare(claim)
    node.lifecycle.unprepare(claim)
    assert_nothing_left(node, claim)


def test_a_restart_keeps_claims_and_conflicts(node):
    first = node.claim(1, [result()])
    node.prepare(first)
    node.restart()
    with pytest.raises(DeviceBusy):
        node.prepare(node.claim(2, [result()]))
    node.lifecycle.unprepare(first)
    assert_nothing_left(node, first)
    assert node.prepare(node.claim(2, [result()])) == [("gpu-0", U0)]


# Observing only.


def observing(node):
    node.stop()
    node.observe_only = True
    node.start()


def test_observing_refuses_a_claim_that_needs_a_change_before_anything(node):
    observing(node)
    node.control.slices[U0] = 0
    claim = node.claim(1, [result()], LONG)
    with pytest.raises(ControlRefused, match=r"time slice 3 on gpu-0 .* --gpu-control=observe"):
        node.prepare(claim)
    assert node.control.calls == []
    assert_nothing_left(node, claim)


@pytest.mark.parametrize("slices", [{U0: 0}, {}], ids=["read", "cannot be read"])
def test_observing_accepts_what_the_card_already_has(node, slices):
    observing(node)
    node.control.slices.update(slices)
    claim = node.claim(1, [result()], DEFAULT)
    node.prepare(claim)
    node.lifecycle.unprepare(claim)
    assert node.control.calls == []


def test_observing_refuses_a_compute_mode_that_would_have_to_change(node):
    observing(node)
    node.control.modes[U0] = ComputeMode.EXCLUSIVE_PROCESS
    with pytest.raises(ControlRefused, match=r"compute mode DEFAULT on gpu-0 .* which has EXCLUSIVE_PROCESS"):
        node.prepare(node.claim(1, [result()], DEFAULT))
    assert node.control.calls == []


# Many at once.


def test_the_same_claim_prepared_from_many_threads_gets_one_answer(node):
    claim = node.claim(1, [result()], LONG)
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(node.lifecycle.prepare(claim))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 8
    assert len(set(answers)) == 1
    assert node.control.slices_set == [3]


def test_two_claims_racing_for_one_card_leave_one_winner(node):
    claims = [node.claim(number, [result()]) for number in range(8)]
    outcomes = []

    def attempt(claim):
        try:
            outcomes.append(node.prepare(claim))
        except DeviceBusy:
            outcomes.append(None)

    threads = [threading.Thread(target=attempt, args=(claim,)) for claim in claims]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes, key=bool) == [None] * 7 + [[("gpu-0", U0)]]


def test_a_slow_tool_on_one_card_does_not_hold_up_another(node):
    entered, release = threading.Event(), threading.Event()

    def slow(uuid, _):
        if uuid == U0:
            entered.set()
            assert release.wait(10)

    node.control.fail_set_time_slice = slow
    thread = threading.Thread(target=node.prepare, args=(node.claim(1, [result()], LONG),))
    thread.start()
    assert entered.wait(10)
    assert node.prepare(node.claim(2, [result("gpu-1")], LONG)) == [("gpu-1", U1)]
    release.set()
    thread.join()


def test_a_bad_config_says_where_it_stands(node):
    config = gpu_config({"strategy": "TimeSlicing", "timeSlicingConfig": {"intervall": "Short"}})
    claim = node.claim(1, [result()], config_entry(config))
    with pytest.raises(BadConfig, match=r"intervall.*config\[0\], from the claim; claim team-a/claim-1"):
        node.prepare(claim)


# Several cards, some broken.

BOTH = [result("gpu-0", "a"), result("gpu-1", "b")]


def test_a_broken_card_does_not_keep_the_others_of_its_claim(node):
    node.control.fail_set_time_slice = lambda uuid, _: ControlError("broken") if uuid == U1 else None
    claim = node.claim(1, BOTH, LONG)
    with pytest.raises(ControlError, match="broken"):
        node.prepare(claim)
    assert node.control.slices == {U0: 0}
    assert_nothing_left(node, claim)


def test_steps_that_were_never_taken_are_not_undone(node):
    node.control.fail_set_time_slice = lambda uuid, level: ControlError("broken") if (uuid, level) == (U0, 3) else None
    with pytest.raises(ControlError):
        node.prepare(node.claim(1, BOTH, LONG))
    assert [call for call in node.control.calls if call[1] == U1] == []


def test_all_cards_are_reset_before_a_failure_is_told(node):
    claim = node.claim(1, BOTH, LONG)
    node.prepare(claim)
    node.control.fail_set_time_slice = lambda uuid, _: ControlError("broken") if uuid == U0 else None
    with pytest.raises(ControlError, match="broken"):
        node.lifecycle.unprepare(claim)
    assert node.control.slices == {U0: 3, U1: 0}


def test_a_half_unprepared_claim_is_prepared_anew_and_not_answered_from_the_state(node):
    claim = node.claim(1, BOTH, LONG)
    node.prepare(claim)
    node.control.fail_set_time_slice = lambda uuid, _: ControlTimeout("no answer") if uuid == U1 else None
    with pytest.raises(ControlTimeout):
        node.lifecycle.unprepare(claim)
    assert node.store.get(claim.uid).state is ClaimState.ENDING
    node.restart()
    node.control.fail_set_time_slice = lambda *_: None
    node.prepare(claim)
    assert node.control.slices == {U0: 3, U1: 3}


def test_a_reset_that_fails_for_minutes_lets_the_pod_go_with_an_event(node, monkeypatch):
    monkeypatch.setattr(lifecycle, "_GIVE_UP_SECONDS", 0.0)
    claim = node.claim(1, [result()], LONG)
    node.prepare(claim)
    node.control.fail_set_time_slice = lambda *_: ControlTimeout("no answer")
    node.lifecycle.unprepare(claim)
    assert_nothing_left(node, claim)
    assert node.store.time_slice(U0, "epoch-1") is None
    (event,) = node.events.events
    assert event[:2] == ("Warning", "GPUResetFailed")


def test_a_file_that_is_not_what_it_should_be_is_written_again(node):
    claim = node.claim(1, [result()])
    node.prepare(claim)
    node.cdi.files[claim.uid] = ("gpu-1",)
    node.prepare(claim)
    assert node.cdi.files[claim.uid] == ("gpu-0",)


def test_a_file_that_cannot_be_made_now_is_kept(node):
    claim = node.claim(1, [result()])
    first = node.lifecycle.prepare(claim)
    node.cdi.fail_plan = 1
    assert node.lifecycle.prepare(claim) == first
    node.cdi.fail_plan = 1
    node.cdi.files.clear()
    with pytest.raises(CdiError):
        node.prepare(claim)


def test_recovery_adopts_only_what_is_still_an_orphan(node):
    claim = node.claim(1, [result()])
    node.prepare(claim)
    record = node.store.get(claim.uid)
    assert not node.orphans.adopt(record)
    node.lifecycle.unprepare(claim)
    assert not node.orphans.adopt(record)
    assert_nothing_left(node, claim)
    node.cdi.files[claim.uid] = ("gpu-0",)
    assert node.orphans.adopt(record)
    assert not node.orphans.discard(claim)
