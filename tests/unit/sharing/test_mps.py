"""MPS as a strategy, apart from the claims that use it."""

import hashlib

import pytest

from dra_driver.model.devices import ComputeMode
from dra_driver.model.plan import SetComputeMode
from dra_driver.sharing.mps import MpsStrategy, daemon_id
from dra_driver.sharing.strategy import GpuState
from dra_driver_api.config import Mps, MpsConfig
from tests.builders import gpu_uuid, make_gpu

UID = "00000000-0000-4000-9000-000000000001"


def test_id_is_that_of_nvidias_driver_whatever_the_order_of_devices():
    uuids = [gpu_uuid(1), gpu_uuid(0)]
    digits = hashlib.sha256(f"{gpu_uuid(0)},{gpu_uuid(1)}".encode()).hexdigest()[:5]
    assert daemon_id(UID, uuids) == daemon_id(UID, reversed(uuids)) == f"{UID}-{digits}"
    assert len(digits) == 5


def test_card_in_the_right_mode_needs_no_step():
    gpu = make_gpu()
    state = GpuState(compute_mode=ComputeMode.EXCLUSIVE_PROCESS, time_slice=2)
    assert MpsStrategy().steps(gpu, Mps(), state) == ()


def test_time_slice_is_left_as_it_is():
    gpu = make_gpu()
    (step,) = MpsStrategy().steps(gpu, Mps(), GpuState(compute_mode=ComputeMode.PROHIBITED, time_slice=2))
    assert step == SetComputeMode(
        gpu_uuid=gpu.uuid, device="gpu-0", mode=ComputeMode.EXCLUSIVE_PROCESS, previous=ComputeMode.PROHIBITED
    )
    assert MpsStrategy().time_slice(Mps()) is None


def test_daemon_has_each_device_once_in_order():
    gpus = [make_gpu(1), make_gpu(0), make_gpu(1)]
    daemon = MpsStrategy().daemon(UID, gpus, Mps())
    assert daemon.devices == daemon.gpus == (gpu_uuid(0), gpu_uuid(1))
    assert daemon.id == daemon_id(UID, daemon.devices)


UID = "00000000-0000-4000-9000-000000000001"


@pytest.mark.parametrize("capability", ["", "unknown", "6.1"])
def test_card_that_is_not_known_to_take_several_users_is_refused(capability):
    config = Mps(mps_config=MpsConfig(multi_user=True))
    with pytest.raises(ValueError, match=f"compute capability {capability or 'unknown'}: .* from 7.0 on"):
        MpsStrategy().daemon(UID, [make_gpu(cuda_compute_capability=capability)], config)


def test_card_of_the_first_capability_that_takes_several_users_is_taken():
    config = Mps(mps_config=MpsConfig(multi_user=True))
    daemon = MpsStrategy().daemon(UID, [make_gpu(cuda_compute_capability="7.0")], config)
    assert daemon.multi_user
