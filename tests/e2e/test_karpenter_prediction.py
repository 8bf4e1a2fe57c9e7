"""What Karpenter believes that a GPU driver will publish on an instance type is what this driver publishes there.

With ``settings.enableDRA`` Karpenter chooses machines by a table that was read off NVIDIA's driver on each type. A
claim that selects by what differs would get a node that does not satisfy it.
"""

import re
from typing import Any, Final

import pytest
import yaml

from dra_driver.commands.main import main
from hack.cluster import published

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

Json = dict[str, Any]
TABLE: Final = "pkg/providers/drametadata/zz_generated_gpu_metadata.go"
OF_ONE_MACHINE: Final = {"resource.kubernetes.io/pcieRoot"}
_ATTRIBUTE: Final = re.compile(r'"([\w./]+)":\s+\{(String|Version)Value: strPtr\("([^"]+)"\)\}')
_MEMORY: Final = re.compile(r'"memory": \{Value: resource\.MustParse\("(\w+)"\)')


def predicted(instance_type: str) -> list[Json]:
    """Devices of the table: attributes as the API has them, and memory."""
    text = (published.KARPENTER_AWS.folder() / TABLE).read_text(encoding="utf-8")
    (entry,) = re.findall(rf'^\t"{re.escape(instance_type)}": \{{\n(.*?)^\t\}},$', text, re.DOTALL | re.MULTILINE)
    devices = entry.split("Attributes:")[1:]
    return [
        {
            "attributes": {name: {kind.lower(): value} for name, kind, value in _ATTRIBUTE.findall(device)},
            "memory": _MEMORY.findall(device),
        }
        for device in devices
    ]


@pytest.mark.parametrize(
    ("instance_type", "scenario"),
    [("g4dn.12xlarge", "t4x4"), ("g5.12xlarge", "a10gx4"), ("g6.2xlarge", "l4x1"), ("p4d.24xlarge", "a100x8")],
)
def test_devices_are_those_that_karpenter_predicts(
    instance_type: str, scenario: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inventory", "--output=slices", "--node-name=node-a", f"--simulated-node={scenario}"]) == 0
    (found,) = yaml.safe_load(capsys.readouterr().out)["items"]
    expected = predicted(instance_type)
    assert [device["name"] for device in found["spec"]["devices"]] == [f"gpu-{n}" for n in range(len(expected))]
    for device, wanted in zip(found["spec"]["devices"], expected, strict=True):
        assert wanted["attributes"].keys() <= device["attributes"].keys()
        for name in wanted["attributes"].keys() - OF_ONE_MACHINE:
            assert device["attributes"][name] == wanted["attributes"][name]
        assert [device["capacity"]["memory"]["value"]] == wanted["memory"]
        # Ours has more: what only a running node knows, and what NVIDIA's driver has not.
        assert len(wanted["attributes"]) > 5
