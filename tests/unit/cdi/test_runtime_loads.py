"""Specs as a container runtime loads them: through the library that containerd and CRI-O share (hack/cdi_validate)."""

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_driver.cdi.claim_specs import ClaimSpecs
from dra_driver.cdi.directory import CdiDirectory
from dra_driver.cdi.spec import ClaimSpec, build_spec
from dra_driver.cdi.tools import Tools
from tests.builders import make_gpu, make_mig
from tests.driver_tree import AL2023, LAYOUTS, VERSION, Layout, driver_files, driver_tree
from tests.unit.cdi import fake_tools
from tests.unit.cdi.documents import UID, common_edits, gpu_edits

SOURCES = Path(__file__).parents[3] / "hack/cdi_validate"
BUILD_SECONDS = 280

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def validator() -> Path:
    """The program, built once for each state of its sources and kept outside the checkout."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("the CDI library's own check needs go on PATH: specs were checked by our rules and schema only")
    sources = b"".join((SOURCES / name).read_bytes() for name in ("go.mod", "go.sum", "main.go"))
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dra-driver-gpu"
    program = cache / f"cdi_validate-{hashlib.sha256(sources).hexdigest()[:16]}"
    if not program.exists():
        _build(go, program)
    return program


def _build(go: str, program: Path) -> None:
    program.parent.mkdir(parents=True, exist_ok=True)
    fetched = _run([go, "mod", "download"], SOURCES)
    if fetched.returncode != 0:
        pytest.skip(f"Go modules of hack/cdi_validate cannot be had: {fetched.stderr.strip()[-200:]}")
    fresh = program.with_name(f"{program.name}.{os.getpid()}")
    built = _run([go, "build", "-trimpath", "-o", str(fresh), "."], SOURCES)
    assert built.returncode == 0, built.stderr
    fresh.replace(program)


def _run(command: list[str], directory: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "GOFLAGS": "-mod=readonly", "CGO_ENABLED": "0"}
    return subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False
    )


@pytest.fixture
def load(validator: Path, tmp_path: Path) -> Callable[..., Any]:
    """Load the specs of a directory, apply the devices to one container and give what came of it."""

    def run(*ids: str) -> Any:
        done = _run([str(validator), str(tmp_path / "cdi"), *ids], tmp_path)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


def _write(tmp_path: Path, spec: ClaimSpec) -> ClaimSpec:
    CdiDirectory(tmp_path / "cdi").write(spec.claim_uid, spec.text)
    return spec


def _claim(tmp_path: Path, layout: Layout = AL2023) -> ClaimSpec:
    """Two GPUs and a MIG device on a whole host."""
    tree = driver_tree(tmp_path, layout, gpus=3)
    specs = ClaimSpecs(CdiDirectory(tmp_path / "cdi"), driver_files(tree.roots), lambda: VERSION)
    return specs.plan(UID, [make_gpu(0), make_gpu(1), make_mig(make_gpu(2))])


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_runtime_resolves_every_device_id(tmp_path: Path, load: Callable[..., Any], layout: Layout) -> None:
    spec = _write(tmp_path, _claim(tmp_path, layout))

    assert load(*spec.device_ids)["devices"] == list(spec.device_ids)


def test_runtime_gives_a_container_its_device_the_common_nodes_and_no_other(
    tmp_path: Path, load: Callable[..., Any]
) -> None:
    spec = _write(tmp_path, _claim(tmp_path))

    nodes = load(spec.device_ids[1])["nodes"]

    assert {(node["path"], node["type"], node["major"], node["minor"]) for node in nodes} == {
        ("/dev/nvidia1", "c", 195, 1),
        ("/dev/nvidiactl", "c", 195, 255),
        ("/dev/nvidia-uvm", "c", 238, 0),
        ("/dev/nvidia-uvm-tools", "c", 238, 1),
    }


def test_runtime_sets_one_environment_for_several_devices(tmp_path: Path, load: Callable[..., Any]) -> None:
    spec = _write(tmp_path, _claim(tmp_path))

    assert load(*spec.device_ids)["env"] == [
        "TRITON_LIBCUDA_PATH=/usr/local/nvidia/lib64",
        "NVIDIA_CTK_LIBCUDA_DIR=/usr/local/nvidia/lib64",
        "NVIDIA_VISIBLE_DEVICES=void",
    ]


def test_runtime_mounts_what_the_spec_says(tmp_path: Path, load: Callable[..., Any]) -> None:
    spec = _write(tmp_path, _claim(tmp_path))

    assert load(*spec.device_ids)["mounts"] == {mount.container_path: mount.host_path for mount in spec.common.mounts}


def test_runtime_calls_the_hooks_of_a_claim_once_for_several_devices(tmp_path: Path, load: Callable[..., Any]) -> None:
    tree = driver_tree(tmp_path, AL2023, gpus=2)
    fake_tools.hook(tmp_path / "image/nvidia-cdi-hook")
    tools = Tools(shared=tmp_path / "plugins", own=(tmp_path / "image",))
    files = driver_files(tree.roots, tools)
    specs = ClaimSpecs(CdiDirectory(tmp_path / "cdi"), files, lambda: VERSION)
    spec = _write(tmp_path, specs.plan(UID, [make_gpu(0), make_gpu(1)]))

    called = load(*spec.device_ids)["createContainer"]

    assert called == [[hook.path, *hook.args] for hook in spec.common.hooks]
    assert [(path, name) for path, _, name, *_ in called] == [
        (str(tmp_path / "plugins/nvidia-cdi-hook"), name)
        for name in (
            "create-symlinks",
            "enable-cuda-compat",
            "update-ldcache",
            "disable-device-node-modification",
            "update-application-profile",
        )
    ]


@pytest.mark.parametrize("mode", [0o666, 0o660], ids=["open node", "node of a group"])
def test_version_is_the_least_that_the_library_asks_for(tmp_path: Path, load: Callable[..., Any], mode: int) -> None:
    spec = _write(tmp_path, build_spec(UID, [gpu_edits(file_mode=mode, gid=44)], common_edits()))

    versions = load()["minimumVersions"]

    assert versions == {f"k8s.gpu.nvidia.com-claim_{UID}.yaml": yaml.safe_load(spec.text)["cdiVersion"]}


def test_runtime_refuses_a_spec_with_an_unknown_key(tmp_path: Path, validator: Path) -> None:
    spec = _claim(tmp_path)
    CdiDirectory(tmp_path / "cdi").write(UID, spec.text + "extra: 1\n")

    done = _run([str(validator), str(tmp_path / "cdi"), *spec.device_ids], tmp_path)

    assert done.returncode == 1
    assert "extra" in done.stderr
