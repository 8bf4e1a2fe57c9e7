"""The run on real GPUs: what is packed comes out again, and the program of the pods."""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hack.hardware import cli, gpu_work, layout, pack, pod_images, pod_root, unpack
from hack.hardware.errors import HardwareError


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    """A pack of a few bytes."""
    made = tmp_path / "pack"
    made.mkdir()
    for name, file in zip(layout.ARCHIVES, ("programs/kubernetes", "programs/containerd", "site/yaml.py"), strict=True):
        source = tmp_path / "source" / name / file
        source.parent.mkdir(parents=True)
        source.write_text(file)
        source.chmod(0o755)
        pack.compress(tmp_path / "source" / name, made / name)
    (made / layout.FACTS).write_text(json.dumps({"key": 1}))
    return made


def test_what_was_packed_comes_out_with_its_mode(packed: Path, tmp_path: Path) -> None:
    found = unpack.unpack(packed, tmp_path / "out")
    assert (found / "site/yaml.py").read_text() == "site/yaml.py"
    assert os.access(found / "programs/kubernetes", os.X_OK)


def test_program_with_three_names_is_a_real_file_under_each(packed: Path, tmp_path: Path) -> None:
    programs = unpack.unpack(packed, tmp_path / "out") / "programs"
    for name in ("ctr", "containerd-shim-runc-v2"):
        assert not (programs / name).is_symlink()
        assert (programs / name).samefile(programs / "containerd")


def test_same_pack_is_not_unpacked_again_and_another_one_is(packed: Path, tmp_path: Path) -> None:
    out = unpack.unpack(packed, tmp_path / "out")
    (out / "kept").touch()
    unpack.unpack(packed, out)
    assert (out / "kept").exists()
    (packed / layout.FACTS).write_text(json.dumps({"key": 2}))
    unpack.unpack(packed, out)
    assert not (out / "kept").exists()


def test_folder_without_a_pack_says_how_one_is_made(tmp_path: Path) -> None:
    with pytest.raises(HardwareError, match=r"holds no pack: .*; make one: python -m hack\.hardware pack"):
        unpack.unpack(tmp_path, tmp_path / "out")


def test_file_that_the_machine_has_is_left_as_it_is(tmp_path: Path) -> None:
    system, root = tmp_path / "system", tmp_path / "root"
    for name in ("usr/lib/cni/ptp", "usr/lib/x/libelf.so.1", "usr/sbin/sh"):
        (system / name).parent.mkdir(parents=True, exist_ok=True)
        (system / name).write_text("ours")
    (root / "usr/lib/x").mkdir(parents=True)
    (root / "usr/lib/x/libelf.so.1").write_text("theirs")
    # sh is on this machine's PATH, wherever it is.
    assert unpack.install(system, root) == ["/usr/lib/cni/ptp"]
    assert (root / "usr/lib/x/libelf.so.1").read_text() == "theirs"


def test_pods_root_has_a_file_with_the_links_that_lead_to_it(tmp_path: Path) -> None:
    root, target = tmp_path / "root", tmp_path / "pod"
    (root / "usr/lib/x").mkdir(parents=True)
    (root / "usr/lib/x/libz.so.1.3").write_text("z")
    (root / "usr/lib/x/libz.so.1").symlink_to("libz.so.1.3")
    (root / "usr/lib/x/other.so").touch()
    (root / "lib").symlink_to("usr/lib")
    pod_root.copy(root / "lib/x/libz.so.1", target, root)
    assert os.readlink(target / "lib") == "usr/lib"
    assert os.readlink(target / "usr/lib/x/libz.so.1") == "libz.so.1.3"
    assert (target / "lib/x/libz.so.1").read_text() == "z"
    assert not (target / "lib/x/other.so").exists()


def test_pods_root_follows_a_link_from_the_top_and_brings_bytecode(tmp_path: Path) -> None:
    root, target = tmp_path / "root", tmp_path / "pod"
    for name in ("etc/python/custom.py", "etc/python/__pycache__/custom.cpython-312.pyc", "usr/lib/marker"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    (root / "usr/lib/custom.py").symlink_to("/etc/python/custom.py")
    pod_root.copy(root / "usr/lib/custom.py", target, root)
    assert (target / "etc/python/custom.py").is_file()
    assert (target / "etc/python/__pycache__/custom.cpython-312.pyc").is_file()


def test_loader_and_the_libraries_that_nvidias_need_are_found() -> None:
    names = {path.name for path in pod_root.libraries([Path("/usr/bin/python3").resolve()])}
    assert {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1"} <= names
    assert any(name.startswith("ld-linux") for name in names)


def test_driver_and_cluster_find_what_they_load_in_the_pack() -> None:
    names = {each.partition(">")[0] for each in pack.requirements()}
    assert {"grpcio", "kubernetes", "pydantic", "nvidia-ml-py", "PyYAML", "cryptography"} <= names
    assert not names & {"rich", "starlette", "uvicorn"}


def test_images_differ_in_what_a_loader_and_nvidias_runtime_look_for() -> None:
    facts = {kind.name: (bool(kind.files), kind.asks_for_all) for kind in pod_images.KINDS}
    assert set(facts.values()) == set(itertools.product((False, True), repeat=2))
    assert facts["bare"] == (False, False)


@pytest.mark.parametrize(("inside", "root"), [("usr/local/nvidia/lib64", "/usr/local/nvidia"), ("usr/lib64", "/")])
def test_driver_root_is_where_libcuda_is(tmp_path: Path, inside: str, root: str) -> None:
    (tmp_path / inside).mkdir(parents=True)
    (tmp_path / inside / "libcuda.so.1").touch()
    assert cli.driver_root(tmp_path) == Path(root)


def test_python_that_the_pack_is_not_for_says_which_one_it_is_for() -> None:
    with pytest.raises(HardwareError, match=r"lacks no_such_module, and the pack's packages are for 3\.12: start this"):
        cli.require(("json", "no_such_module"))


def test_scene_that_there_is_not_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["run", "--output", str(tmp_path), "--scenes", "ax"])
    assert ended.value.code == 2
    assert "found 'ax', must be letters of abcf" in capsys.readouterr().err


def test_container_without_a_driver_reports_that_and_ends_well() -> None:
    done = subprocess.run(
        [sys.executable, "-IB", gpu_work.__file__, "report"], capture_output=True, text=True, timeout=60, check=False
    )
    report = json.loads(done.stdout)
    assert done.returncode == 0
    assert (report["count"], report["cards"]) == (0, [])
    assert "libcuda.so.1" in report["error"]


class Card:
    """Takes half a second a call, by a clock of its own."""

    def __init__(self) -> None:
        self.now = 20.5
        self.kinds: list[str] = []

    def time(self) -> float:
        return self.now

    def run(self, kind: str) -> float:
        self.kinds.append(kind)
        self.now += 0.5
        return 10.0

    def facts(self) -> gpu_work.Json:
        return {}

    def wrong(self) -> int:
        return 0


def test_each_slot_has_its_work_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    card = Card()
    monkeypatch.setattr(gpu_work.time, "time", card.time)
    monkeypatch.setattr(gpu_work.time, "perf_counter", card.time)
    lines = list(itertools.islice(gpu_work.measure(card, lambda: False), 3))
    assert [line["slot"] for line in lines] == [10, 11, 12]
    assert [line["kind"] for line in lines] == [gpu_work.WORK[number % 3] for number in (10, 11, 12)]
    assert [line["late"] for line in lines] == [0.5, 0.0, 0.0]
    assert [(line["done"], line["seconds"]) for line in lines] == [(30.0, 1.5), (40.0, 2.0), (40.0, 2.0)]


def test_results_are_whole_numbers_that_fp32_holds_exactly() -> None:
    most = gpu_work.expected(1023, gpu_work.LOOPS)
    assert most == gpu_work.CHAINS * (1023 + gpu_work.ROUNDS)
    assert most < 1 << 24


def test_kernel_has_the_operations_that_are_counted() -> None:
    assert gpu_work.ptx().count("fma.rn.f32") == gpu_work.CHAINS * gpu_work.UNROLLED
