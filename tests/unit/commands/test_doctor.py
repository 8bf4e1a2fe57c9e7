import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dra_driver import settings
from dra_driver.commands.main import main
from dra_driver.devices.simulated import SimulatedNode
from dra_driver.model.errors import SettingError
from dra_driver.settings.roots import roots_in
from tests.node_tree import KUBELET, NodeTree
from tests.unit.cdi import fake_tools

ROOT_ENVIRONMENT = ("NVIDIA_DRIVER_ROOT", "HOST_DRIVER_ROOT", "CDI_ROOT", "SIMULATED_NODE")


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ROOT_ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def tree(tmp_path: Path) -> NodeTree:
    """A node without GPUs, on which nothing is wrong."""
    return NodeTree(tmp_path).containerd().cgroups().kubelet()


def _examined(capsys: pytest.CaptureFixture[str], tree: NodeTree, *flags: str) -> tuple[int, Any]:
    code = main(["doctor", "--root", str(tree.root), "-o", "json", *flags])
    return code, json.loads(capsys.readouterr().out)


def _statuses(report: Any) -> dict[str, str]:
    return {finding["check"]: finding["status"] for finding in report["findings"]}


def test_node_without_problems_ends_with_exit_code_0(tree: NodeTree, capsys: pytest.CaptureFixture[str]) -> None:
    code, report = _examined(capsys, tree)

    assert (code, report["ok"], report["problems"], report["root"]) == (0, True, 0, str(tree.root))
    assert _statuses(report)["node"] == "warning"


def test_problem_ends_with_exit_code_1(tree: NodeTree, capsys: pytest.CaptureFixture[str]) -> None:
    code, report = _examined(capsys, tree.device_plugin())

    assert (code, report["ok"], report["problems"]) == (1, False, 1)
    assert _statuses(report)["publishers"] == "problem"


def test_finding_has_the_same_keys_whatever_it_says(tree: NodeTree, capsys: pytest.CaptureFixture[str]) -> None:
    _, report = _examined(capsys, tree)

    keys = {"check", "status", "message", "remedy", "facts"}
    assert [finding for finding in report["findings"] if set(finding) != keys] == []
    assert {finding["remedy"] for finding in report["findings"] if finding["status"] == "ok"} == {None}


def test_text_has_a_line_a_finding_and_the_remedy_below(tree: NodeTree, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--root", str(tree.root)]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("warning node ")
    assert lines[1].split() == ["->", "nothing,", "if", "this", "node", "shall", "have", "none"]
    assert "ok      driver           none, and no GPU that would need one" in lines
    assert lines[-1] == "0 problems, 2 warnings"


def test_settings_of_the_driver_are_taken_from_flags_and_environment(
    tree: NodeTree, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CDI_ROOT", "/opt/cdi")
    by_environment, _ = _examined(capsys, tree)

    by_flag, report = _examined(capsys, tree, "--cdi-root=/run/cdi")

    assert (by_environment, by_flag) == (1, 0)
    assert _statuses(report)["containerd"] == "ok"


def test_driver_container_with_its_own_dev_is_examined_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = NodeTree(tmp_path).gpus().load_driver().kubelet().cgroups().containerd()
    tree.add("/run/nvidia/driver/usr/lib64/libcuda.so.580.159.04")
    tree.add("/run/nvidia/driver/usr/lib64/libnvidia-ml.so.580.159.04").add("/run/nvidia/driver/dev/nvidiactl")

    _, report = _examined(capsys, tree, "--nvidia-driver-root=/run/nvidia/driver")

    (nodes,) = [finding for finding in report["findings"] if finding["check"] == "device-nodes"]
    assert "/run/nvidia/driver/dev/nvidia0" in " ".join(nodes["facts"]["wrong"])


@pytest.mark.parametrize("nodes", [[], ["dev/nvidiactl"]], ids=["host's nodes", "nodes of its own"])
@pytest.mark.parametrize("flags", [[], ["--nvidia-dev-root=/opt"]], ids=["found", "given"])
def test_folder_has_the_roots_of_the_driver_that_runs_on_it(tmp_path: Path, nodes: list[str], flags: list[str]) -> None:
    root = tmp_path / "run/nvidia/driver"
    for name in ("dev/null", *nodes):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    parser = argparse.ArgumentParser()
    settings.add_options(parser)
    read = settings.load(parser.parse_args(["--nvidia-driver-root=/run/nvidia/driver", "--node-name=n", *flags]), {})

    seen, running = roots_in(tmp_path, read), settings.roots(read, mounted_driver_root=root)

    assert (seen.driver_root, seen.dev_root) == (running.driver_root, running.dev_root)
    assert seen.container_driver_root == running.container_driver_root
    assert seen.container_dev_root == tmp_path / str(running.dev_root).lstrip("/")


def test_node_that_simulates_gpus_is_examined_as_such(tree: NodeTree, capsys: pytest.CaptureFixture[str]) -> None:
    code, report = _examined(capsys, tree, "--simulated-node=h200x2")

    assert (code, report["warnings"]) == (0, 0)


def test_drivers_pod_examines_the_host_through_the_mounted_driver_root(
    tree: NodeTree, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["doctor", "-o", "json", f"--container-driver-root={tree.root}"])

    findings = {finding["check"]: finding for finding in json.loads(capsys.readouterr().out)["findings"]}
    assert findings["node"]["facts"]["os"] == "Amazon Linux 2023.8"
    assert findings["containerd"]["facts"]["files"] == ["/etc/containerd/config.toml"]


def test_drivers_pod_that_does_not_see_the_host_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    main(["doctor", "-o", "json", "--nvidia-driver-root=/run/nvidia/driver", "--container-driver-root=/nonexistent"])

    findings = {finding["check"]: finding for finding in json.loads(capsys.readouterr().out)["findings"]}
    assert "not seen from this container" in findings["containerd"]["message"]
    assert "a device plugin goes unnoticed" in findings["publishers"]["message"]
    assert findings["publishers"]["status"] == "warning"


def test_this_machine_is_examined_without_gpus_and_without_changing_it(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["doctor", "-o", "json"])

    report = json.loads(capsys.readouterr().out)
    assert code == (0 if report["ok"] else 1)
    assert {"node", "driver", "kubelet", "publishers"} <= set(_statuses(report))


def test_nothing_in_the_folder_is_changed(tree: NodeTree, capsys: pytest.CaptureFixture[str]) -> None:
    tree.gpus().load_driver().install()
    before = sorted((str(path), path.lstat().st_mtime_ns) for path in tree.root.rglob("*"))

    _examined(capsys, tree)

    assert sorted((str(path), path.lstat().st_mtime_ns) for path in tree.root.rglob("*")) == before


def test_folder_that_is_none_is_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--root", str(tmp_path / "gone")]) == 2

    assert f"--root: found {tmp_path}/gone, must be a folder" in capsys.readouterr().err


def _toolkit(capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, Any]:
    main(["doctor", "-o", "json", *flags])
    findings = json.loads(capsys.readouterr().out)["findings"]
    facts: dict[str, Any] = next(finding["facts"] for finding in findings if finding["check"] == "toolkit")
    return facts


def test_programs_on_path_are_the_drivers_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = NodeTree(tmp_path / "host").gpus().load_driver().install()
    own = [fake_tools.hook(tmp_path / "bin/nvidia-cdi-hook"), fake_tools.program(tmp_path / "bin/nvidia-ctk", "#!")]
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/nonexistent")

    facts = _toolkit(capsys, f"--container-driver-root={tree.root}", f"--kubelet-plugins-directory-path={tmp_path}")

    assert (facts["hook"], facts["generator"]) == (f"{tmp_path}/gpu.nvidia.com/{own[0].name}", str(own[1]))


def test_copy_in_a_folder_shows_that_the_drivers_image_has_the_hook_program(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = "/var/lib/kubelet/plugins/gpu.nvidia.com/nvidia-cdi-hook"
    tree = NodeTree(tmp_path / "host").gpus().load_driver().install().add(copy, "#!/bin/sh\n")
    fake_tools.hook(tree.path("/usr/bin/nvidia-cdi-hook"))
    fake_tools.program(tmp_path / "bin/nvidia-ctk", "#!")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin")

    facts = _toolkit(capsys, f"--root={tree.root}")

    assert (facts["hook"], facts["generator"]) == (copy, None)


@pytest.mark.parametrize("directory", ["device-plugins/nvidia", "plugins_registry/gpu.nvidia.com"])
@pytest.mark.parametrize("output", ["text", "json"])
def test_socket_whose_name_is_no_text_is_shown(
    tree: NodeTree, capsys: pytest.CaptureFixture[str], directory: str, output: str
) -> None:
    socket = tree.socket(f"{KUBELET}/{directory}").path(f"{KUBELET}/{directory}")
    os.rename(socket, os.fsencode(socket) + b"-\xff\x1b.sock")

    assert main(["doctor", "--root", str(tree.root), "-o", output]) == 1

    assert f"{directory}-\\udcff\\" in capsys.readouterr().out


def test_name_that_the_terminal_cannot_show_is_escaped(tree: NodeTree) -> None:
    tree.add("/etc/os-release", 'PRETTY_NAME="Linux \u00e9"\n')
    command = [sys.executable, "-m", "dra_driver", "doctor", f"--root={tree.root}"]

    done = subprocess.run(command, env={"PYTHONIOENCODING": "ascii"}, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
    assert "Linux \\xe9, kernel" in done.stdout


@pytest.mark.parametrize("output", ["text", "json"])
def test_output_that_cannot_be_written_is_one_line_and_a_failure(tree: NodeTree, output: str) -> None:
    command = [sys.executable, "-m", "dra_driver", "doctor", f"--root={tree.root}", "-o", output]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)

    assert done.returncode == 1
    assert done.stderr == "dra-driver: standard output cannot be written: No space left on device\n"


def test_scenario_that_is_none_is_wrong_usage(tree: NodeTree, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--root", str(tree.root), "--simulated-node=nope"]) == 2

    with pytest.raises(SettingError) as of_the_driver:
        SimulatedNode.load("nope")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", f"dra-driver: {of_the_driver.value}\n")


def test_folder_without_a_name_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--root", ""]) == 2

    assert "--root: found '', must be a folder" in capsys.readouterr().err
