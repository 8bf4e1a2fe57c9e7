"""Field case 90: a monitor with admin access must not change the card of the pods it watches."""

import pytest

from tests.builders import config_entry, result, time_slicing
from tests.cases.driver import PROFILES, U0, Driver, cards, node, set_call

LONG = config_entry(time_slicing("Long"), "gpu")
SHORT = time_slicing("Short")


@pytest.fixture
def owned(driver: Driver) -> Driver:
    """A claim has gpu-0 with time slice Long."""
    driver.prepare(driver.claim("owner", [result()], LONG))
    return driver


@pytest.mark.parametrize("source", ["FromClaim", "FromClass"])
def test_admin_access_with_sharing_is_refused_and_the_owners_slice_stays(owned: Driver, source: str) -> None:
    config = config_entry(SHORT, "gpu", source=source)
    text = owned.refusal(owned.claim("monitor", [result(adminAccess=True)], config))
    assert "adminAccess" in text
    assert owned.tool_calls() == [set_call(U0, 3)]
    assert list(owned.held()) == ["owner"]


def test_monitor_comes_and_goes_without_touching_the_owners_card(owned: Driver) -> None:
    monitor = owned.claim("monitor", [result(adminAccess=True)])
    assert owned.prepare(monitor)
    assert owned.unprepare(monitor) == [""]
    assert owned.tool_calls() == [set_call(U0, 3)]
    assert list(owned.held()) == ["owner"]


def test_admin_access_to_a_mig_device_is_refused(stopped: Driver) -> None:
    layout = [{"profile": "1g.18gb", "starts": [0]}]
    stopped.scenario = node(cards(U0, mig=layout, migProfiles=PROFILES))
    stopped.start()
    (name,) = stopped.devices()
    text = stopped.refusal(stopped.claim("monitor", [result(name, adminAccess=True)]))
    assert "adminAccess is supported for full GPUs only" in text
    assert stopped.held() == {}
