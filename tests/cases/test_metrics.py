"""Field case 67: the driver's own metrics are right from the first scrape and stay few."""

import re

import pytest

from tests.builders import config_entry, gpu_config, result, time_slicing
from tests.cases.driver import U0, U1, Driver, cards, node

MIG = [{"profile": "1g.18gb", "starts": [0]}]
BROKEN = {"behaviours": [{"exitCode": 1, "stderr": "broken"}]}


def metrics(driver: Driver) -> str:
    code, text = driver.get("/metrics")
    assert code == 200
    return text


def samples(text: str, name: str, label: str) -> dict[str, float]:
    """Values of a metric that are not 0, by one label."""
    found = re.findall(rf'^nvidia_dra_{name}{{.*?\b{label}="(\w+)".*}} (\S+)$', text, re.MULTILINE)
    return {key: float(value) for key, value in found if float(value)}


@pytest.fixture
def busy(stopped: Driver) -> Driver:
    """Two GPUs and a MIG device are prepared; the tool is broken."""
    stopped.scenario = node(cards(U0, U1, "GPU-2"), cards("GPU-3", mig=MIG), tool=BROKEN)
    stopped.start()
    for name in ("gpu-0", "gpu-1", "gpu-3-mig-1g18gb-19-0"):
        stopped.prepare(stopped.claim(f"holds-{name}", [result(name)]))
    return stopped


def test_prepared_devices_are_right_at_the_first_scrape_after_a_restart(busy: Driver) -> None:
    busy.restart()
    assert samples(metrics(busy), "prepared_devices", "device_type") == {"gpu": 2, "mig": 1}


def test_failures_are_counted_by_kind(busy: Driver) -> None:
    busy.refusal(busy.claim("typo", [result("gpu-2")], config_entry(gpu_config({"strategy": "Typo"}))))
    busy.refusal(busy.claim("tool", [result("gpu-2")], config_entry(time_slicing("Long"))))
    text = metrics(busy)
    assert samples(text, "node_prepare_errors_total", "error_type") == {"prepare_devices": 2}
    assert samples(text, "request_failures_total", "error_type") == {"bad_config": 1, "gpu_control": 1}


def test_no_series_is_named_after_a_claim(busy: Driver) -> None:
    busy.refusal(busy.claim("turned-away", [result("gpu-0")]))
    text = metrics(busy)
    uids = [record.claim.uid for record in busy.records()]
    assert [word for word in ("holds-", "turned-away", *uids) if word in text] == []
