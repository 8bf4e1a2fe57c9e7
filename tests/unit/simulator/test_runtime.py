"""What a runtime makes of the CDI specs of a node."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_driver.simulator.runtime import CdiRegistry, InjectionError

Json = dict[str, Any]
KIND = "k8s.gpu.nvidia.com/claim"


def spec(*devices: str, common: Json | None = None, node: str = "/dev/null") -> Json:
    return {
        "cdiVersion": "0.7.0",
        "kind": KIND,
        "devices": [
            {"name": d, "containerEdits": {"env": [f"D={d}"], "deviceNodes": [{"path": f"/dev/{d}", "hostPath": node}]}}
            for d in devices
        ],
        "containerEdits": common or {},
    }


def write(directory: Path, name: str, content: Json) -> None:
    text = json.dumps(content) if name.endswith(".json") else yaml.safe_dump(content)
    (directory / name).write_text(text)


@pytest.mark.parametrize("name", ["a.yaml", "a.json"])
def test_device_edits_are_applied(tmp_path: Path, name: str) -> None:
    write(tmp_path, name, spec("one", "two"))
    edits = CdiRegistry([tmp_path]).inject([f"{KIND}=two"])
    assert (edits.env, edits.device_nodes) == ({"D": "two"}, ["/dev/two"])


def test_common_edits_are_applied_once(tmp_path: Path) -> None:
    common = {
        "env": ["NVIDIA_VISIBLE_DEVICES=void"],
        "mounts": [{"hostPath": str(tmp_path), "containerPath": "/lib/a"}],
        "hooks": [{"hookName": "createContainer", "path": "/bin/hook"}],
    }
    write(tmp_path, "a.yaml", spec("one", "two", common=common))
    edits = CdiRegistry([tmp_path]).inject([f"{KIND}=one", f"{KIND}=two", f"{KIND}=one"])
    assert (edits.env["NVIDIA_VISIBLE_DEVICES"], edits.mounts, edits.hooks) == ("void", ["/lib/a"], ["/bin/hook"])
    assert edits.device_nodes == ["/dev/one", "/dev/two"]


def test_unknown_device_is_named(tmp_path: Path) -> None:
    with pytest.raises(InjectionError, match=f"unresolvable CDI devices {KIND}=one"):
        CdiRegistry([tmp_path, tmp_path / "missing"]).inject([f"{KIND}=one"])


def test_device_in_two_specs_is_unresolvable(tmp_path: Path) -> None:
    write(tmp_path, "a.yaml", spec("one"))
    write(tmp_path, "b.yaml", spec("one"))
    with pytest.raises(InjectionError, match="unresolvable"):
        CdiRegistry([tmp_path]).inject([f"{KIND}=one"])


@pytest.mark.parametrize("text", ["", "{", "[]", "cdiVersion: 0.7.0\nkind: nonsense\n", "\x00"])
def test_file_that_is_no_spec_hides_no_other(tmp_path: Path, text: str) -> None:
    (tmp_path / "bad.yaml").write_text(text)
    write(tmp_path, "good.yaml", spec("one"))
    assert CdiRegistry([tmp_path]).inject([f"{KIND}=one"]).device_nodes == ["/dev/one"]


def test_missing_host_path_is_named(tmp_path: Path) -> None:
    write(tmp_path, "a.yaml", spec("one", node=str(tmp_path / "nvidia0")))
    with pytest.raises(InjectionError, match=rf"CDI device {tmp_path}/nvidia0 does not exist on the host"):
        CdiRegistry([tmp_path]).inject([f"{KIND}=one"])


def test_temporary_files_are_not_read(tmp_path: Path) -> None:
    write(tmp_path, ".a.tmp", spec("one"))
    assert CdiRegistry([tmp_path]).files() == []


def test_container_without_devices_needs_no_specs(tmp_path: Path) -> None:
    assert CdiRegistry([tmp_path]).inject([]).env == {}
