"""NVIDIA's own nvidia-cdi-hook sets the memory limits that our specs ask for, on an NVML that keeps what it is told.

``make toolkit`` builds the program; a C compiler makes the library. The hook wants cgroups of version 2, which are
mounted for it alone: needs root.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest

from dra_driver.cdi.claim_specs import ClaimSpecs
from dra_driver.cdi.directory import CdiDirectory
from dra_driver.cdi.tools import EditsSource, Tools
from dra_driver.hostfs import DriverRoots
from hack.cluster import build
from tests.builders import make_gpu
from tests.driver_tree import AL2023, VERSION, driver_files, driver_tree
from tests.unit.cdi import recording_nvml

pytestmark = [pytest.mark.toolkit, pytest.mark.timeout(120)]

_IN_CGROUPS_2: Final = 'mount --make-rprivate / && mount -t cgroup2 none /sys/fs/cgroup && exec "$0" "$@"'
UID = "0e8a1f2c-3b4d-4a5e-9f60-718293a4b5c6"


class Host:
    """A host with that library and the real program. refuses: NVML does not want to set limits."""

    def __init__(self, base: Path, *, refuses: bool = False) -> None:
        found = shutil.which("nvidia-cdi-hook")
        own = Path(found).parent if found else build.cache() / build.tool_product("nvidia").folder
        assert (own / "nvidia-cdi-hook").exists(), "build it first: make toolkit"
        tree = driver_tree(base, AL2023, gpus=2)
        root = tree.root
        self.log = base / "nvml.calls"
        nvml = root / "usr/lib64" / f"libnvidia-ml.so.{VERSION}"
        recording_nvml.write(nvml, base / "nvml.refusing", self.log)
        if refuses:
            (base / "nvml.refusing").touch()
        roots = DriverRoots(driver_root=root, dev_root=root, container_driver_root=root, container_dev_root=root)
        tools = Tools(shared=base / "plugin", edits=EditsSource.BUILTIN, own=(own,))
        self.specs = ClaimSpecs(CdiDirectory(base / "cdi"), driver_files(roots, tools), lambda: VERSION)
        self.bundle = base / "bundle"
        self.bundle.mkdir()

    def start(self, limits: dict[str, int], *env: str) -> list[tuple[int, str]]:
        """Start a container with both GPUs, as far as createRuntime hooks go: exit code and output of each.

        env: what image and pod set, which CDI's variables replace.
        """
        devices = self.specs.plan(UID, [make_gpu(0), make_gpu(1)], limits).document()["devices"]
        edits = [device["containerEdits"] for device in devices]
        added = [entry for each in edits for entry in each.get("env", ())]
        merged = dict(entry.split("=", 1) for entry in (*env, *added))
        process = {"env": [f"{name}={value}" for name, value in merged.items()]}
        (self.bundle / "config.json").write_text(json.dumps({"ociVersion": "1.2.0", "process": process}))
        return [self._call(hook) for each in edits for hook in each.get("hooks", ())]

    def _call(self, hook: dict[str, Any]) -> tuple[int, str]:
        assert hook["hookName"] == "createRuntime"
        state = {"ociVersion": "1.2.0", "id": "c", "status": "creating", "pid": os.getpid()}
        done = subprocess.run(
            ["unshare", "--mount", "sh", "-c", _IN_CGROUPS_2, hook["path"], *hook["args"][1:]],
            input=json.dumps(state | {"bundle": str(self.bundle)}),
            env=dict(entry.split("=", 1) for entry in hook["env"]) | {"PATH": os.environ["PATH"]},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
            check=False,
        )
        return done.returncode, done.stdout

    def limits(self) -> list[list[str]]:
        """GPU, cgroup, soft and hard limit in bytes of each call."""
        return [line.split() for line in self.log.read_text().splitlines()] if self.log.exists() else []


def own_cgroup() -> str:
    """The path that the hook must find for this process."""
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    unified = next(line.removeprefix("0::") for line in lines if line.startswith("0::"))
    return os.path.normpath(f"/sys/fs/cgroup{unified}")


def test_program_has_the_hook_as_we_ask_for_it(tmp_path: Path) -> None:
    assert Host(tmp_path).specs.why_no_memory_limits(VERSION) == ""


def test_limit_is_set_in_bytes_on_the_containers_cgroup_for_exactly_its_gpu(tmp_path: Path) -> None:
    host = Host(tmp_path)
    assert [code for code, _ in host.start({"gpu-1": 20 << 30})] == [0]
    amount = str(20 << 30)
    assert host.limits() == [[make_gpu(1).uuid, own_cgroup(), amount, amount]]


def test_limit_of_two_gpus_is_set_on_both(tmp_path: Path) -> None:
    host = Host(tmp_path)
    assert [code for code, _ in host.start({"gpu-0": 1 << 30, "gpu-1": 1 << 30})] == [0, 0]
    assert [(gpu, hard) for gpu, _, _, hard in host.limits()] == [
        (make_gpu(0).uuid, str(1 << 30)),
        (make_gpu(1).uuid, str(1 << 30)),
    ]


def test_what_image_or_pod_set_does_not_count(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.start({"gpu-0": 1 << 30}, "NVIDIA_GPU_MEMORY_LIMIT=99999999", "NVIDIA_GPU_MEMORY_REQUEST=99999999")
    assert [limits[2:] for limits in host.limits()] == [[str(1 << 30)] * 2]


def test_claim_without_limits_calls_nothing_whatever_the_image_says(tmp_path: Path) -> None:
    host = Host(tmp_path)
    assert host.start({}, "NVIDIA_GPU_MEMORY_LIMIT=1") == []
    assert host.limits() == []


def test_driver_that_refuses_keeps_the_container_from_starting(tmp_path: Path) -> None:
    ((code, output),) = Host(tmp_path, refuses=True).start({"gpu-0": 1 << 30})
    assert code != 0
    assert "failed to set memory limits" in output
