"""Which steps time slicing needs, given what a card has."""

from itertools import product

import pytest

from dra_driver.model.devices import ComputeMode
from dra_driver.model.plan import SetComputeMode, SetTimeSlice
from dra_driver.sharing.strategy import GpuState
from dra_driver.sharing.time_slicing import TimeSlicingStrategy
from dra_driver_api.config import TimeSlicing
from tests.builders import make_gpu

GPU = make_gpu(0)
WORDS = ("Default", "Short", "Medium", "Long")


def sharing(level: int) -> TimeSlicing:
    return TimeSlicing.model_validate({"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": WORDS[level]}})


@pytest.mark.parametrize(("known", "wanted"), list(product((None, 0, 1, 2, 3), range(4))))
def test_slice_is_set_where_the_card_is_not_known_to_have_it_already(known: int | None, wanted: int) -> None:
    state = GpuState(compute_mode=ComputeMode.DEFAULT, time_slice=known)
    steps = TimeSlicingStrategy().steps(GPU, sharing(wanted), state)
    one = SetTimeSlice(gpu_uuid=GPU.uuid, device=GPU.name, interval=wanted, previous=known)
    assert steps == (() if known == wanted else (one,))


@pytest.mark.parametrize("mode", [mode for mode in ComputeMode if mode is not ComputeMode.DEFAULT])
def test_compute_mode_comes_first_and_only_where_it_turns_a_second_client_away(mode: ComputeMode) -> None:
    steps = TimeSlicingStrategy().steps(GPU, sharing(3), GpuState(compute_mode=mode, time_slice=None))
    assert [type(step) for step in steps] == [SetComputeMode, SetTimeSlice]
    (first, _) = steps
    assert isinstance(first, SetComputeMode)
    assert (first.mode, first.previous) == (ComputeMode.DEFAULT, mode)
