"""What goes into the images, and the command line; building one whole takes the network (marked e2e)."""

import json
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

import dra_driver
from hack.image import base, bytecode, cli, driver, elf, gpu_report, hook_program, layers, platforms, programs, wheels
from hack.image.errors import ImageError
from hack.image.oci import Image
from tests import helm

SCRIPT = Path(gpu_report.__file__).with_name("gpu-report")


def reported(environ: Mapping[str, str]) -> dict[str, Any]:
    done = subprocess.run(
        ["sh", SCRIPT],
        env={"PATH": os.environ["PATH"], **environ},
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    )
    (line,) = done.stdout.splitlines()
    return dict(json.loads(line))


# gpu-report.


def test_report_tells_the_variables_about_gpus_and_no_others() -> None:
    found = reported({"NVIDIA_VISIBLE_DEVICES": "void", "CUDA_MPS_PIPE_DIRECTORY": "/mps", "SECRET": "s"})
    assert found["environment"] == {"NVIDIA_VISIBLE_DEVICES": "void", "CUDA_MPS_PIPE_DIRECTORY": "/mps"}


def test_report_stays_json_whatever_a_variable_holds() -> None:
    odd = 'say "hi" \\ $HOME `id` \t end'
    assert reported({"NVIDIA_NOTE": odd})["environment"] == {"NVIDIA_NOTE": 'say "hi" \\ $HOME `id`   end'}


def test_report_lists_devices_and_mounts_when_there_are_none() -> None:
    found = reported({})
    assert isinstance(found["devices"], list)
    assert isinstance(found["mounts"], list)


def test_report_image_refuses_a_program_that_needs_libraries(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="is not a static program"):
        gpu_report.image("localhost/x:v1", platforms.native(), Path(sys.executable).resolve())


def test_text_file_is_not_taken_for_a_static_program(tmp_path: Path) -> None:
    (tmp_path / "busybox").write_text("#!/bin/sh\n" * 10)
    assert not gpu_report.is_static(tmp_path / "busybox")


def test_loader_of_a_program_is_a_file_of_the_machine_it_runs_on() -> None:
    loader = elf.loader_of(Path(sys.executable).resolve())
    assert loader is not None
    assert Path(loader).is_file()


def test_base_whose_interpreter_could_not_be_loaded_is_refused(tmp_path: Path) -> None:
    shutil.copyfile(Path(sys.executable).resolve(), tmp_path / "python")
    with pytest.raises(ImageError, match=r"python asks for the loader /lib.*, which is not in the packages"):
        base._check(tmp_path, "python")


# The hook program.


def program(path: Path, machine: int, loader: str | None = None, mode: int = 0o700) -> Path:
    """An ELF file with nothing in it but what machine it is for and which loader it asks for."""
    text = f"{loader}\0".encode() if loader else b""
    table = struct.pack("<IIQQQQQQ", 3, 4, 120, 0, 0, len(text), len(text), 1) if loader else b""
    header = b"\x7fELF\x02\x01\x01".ljust(16, b"\0") + struct.pack(
        "<HHIQQQIHHHHHH", 2, machine, 1, 0, 64, 0, 0, 64, 56, 1 if loader else 0, 0, 0, 0
    )
    path.write_bytes(header + table + text)
    path.chmod(mode)
    return path


AMD64, ARM64 = platforms.MACHINES["amd64"], platforms.MACHINES["arm64"]


@pytest.fixture
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize("loader", [None, "/lib64/ld-linux-x86-64.so.2"], ids=["static", "dynamic"])
def test_hook_program_is_put_where_the_driver_in_the_image_looks_and_all_may_run_it(
    tmp_path: Path, cache_folder: Path, loader: str | None
) -> None:
    given = program(tmp_path / "built-hook", 62, loader)
    layers.unpack(hook_program.layer(given, AMD64)[0], tmp_path / "root")

    looked_in = [str(Path("/", hook_program.PLACE).parent)]
    assert set(looked_in) <= set(driver.ENVIRONMENT["PATH"].split(":"))
    (found,) = [path for path in (tmp_path / "root").rglob("*") if path.is_file()]
    assert found == tmp_path / "root/usr/bin/nvidia-cdi-hook"
    assert found.read_bytes() == given.read_bytes()
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "root").rglob("*")} == {0o755}


def test_hook_layer_comes_from_the_cache_for_the_same_program_only(tmp_path: Path, cache_folder: Path) -> None:
    first = hook_program.layer(program(tmp_path / "hook", 62), AMD64)
    again = hook_program.layer(program(tmp_path / "same", 62), AMD64)
    other = hook_program.layer(program(tmp_path / "hook", 62, "/lib64/ld-linux-x86-64.so.2"), AMD64)

    assert (first[1], again[1], other[1]) == (False, True, False)
    assert again[0] == first[0] != other[0]


@pytest.mark.parametrize(
    ("machine", "loader", "image", "said"),
    [
        (62, None, ARM64, "for ELF machine 62, the image is for arm64, which is 183"),
        (183, None, AMD64, "for ELF machine 183, the image is for amd64, which is 62"),
        (
            62,
            "/lib/ld-musl-x86_64.so.1",
            AMD64,
            "asks for the loader /lib/ld-musl-x86_64.so.1, the image has ld-linux-",
        ),
    ],
    ids=["amd64 in arm64", "arm64 in amd64", "another C library"],
)
def test_hook_program_that_could_not_run_in_the_image_is_refused(
    tmp_path: Path, machine: int, loader: str | None, image: platforms.Machine, said: str
) -> None:
    with pytest.raises(ImageError, match=f"--nvidia-cdi-hook: found {tmp_path}/hook,? .*{said}"):
        hook_program.layer(program(tmp_path / "hook", machine, loader), image)


def test_script_is_no_hook_program(tmp_path: Path) -> None:
    (tmp_path / "hook").write_text("#!/bin/sh\n" * 10)
    with pytest.raises(ImageError, match=f"--nvidia-cdi-hook: {tmp_path}/hook is no 64-bit little-endian ELF file: "):
        hook_program.layer(tmp_path / "hook", AMD64)


def test_missing_hook_program_ends_the_command_line_before_anything_is_built(
    tmp_path: Path, cache_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["--output", str(tmp_path / "image.tar"), "--nvidia-cdi-hook", "/nonexistent/hook"]) == 1
    assert capsys.readouterr().err.startswith(
        "image: --nvidia-cdi-hook: found /nonexistent/hook, No such file or directory: name one built for the image"
    )
    assert not cache_folder.exists()


# The Python layers.


def test_package_that_is_left_out_goes_with_all_its_files_and_no_others(tmp_path: Path) -> None:
    files = {
        "aiohttp/__init__.py": "",
        "aiohttp/deep/er.py": "",
        "aiohttp-3.0.dist-info/METADATA": "",
        "aiohttp-3.0.dist-info/RECORD": (
            "aiohttp/__init__.py,,\naiohttp/deep/er.py,,\naiohttp-3.0.dist-info/METADATA,,\n"
            "aiohttp-3.0.dist-info/RECORD,,\n"
        ),
        "aiohttp_other/__init__.py": "",
        "kubernetes/aio/__init__.py": "",
        "kubernetes/client/__init__.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    wheels.leave_out(tmp_path)
    left = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {"aiohttp_other/__init__.py", "kubernetes/client/__init__.py"}


def test_notes_about_the_machine_that_built_it_are_not_in_a_layer(tmp_path: Path) -> None:
    info = tmp_path / "thing-1.dist-info"
    info.mkdir()
    for name in ("METADATA", "RECORD", "direct_url.json", "INSTALLER", "entry_points.txt"):
        (info / name).write_text("")
    wheels._tidy(tmp_path)
    assert {path.name for path in info.iterdir()} == {"METADATA", "entry_points.txt"}


def test_modes_in_a_layer_are_not_those_of_the_builders_umask(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir(mode=0o700)
    (tmp_path / "package/module.py").touch(mode=0o600)
    wheels._tidy(tmp_path)
    assert [oct(path.stat().st_mode & 0o777) for path in sorted(tmp_path.rglob("*"))] == ["0o755", "0o644"]


def test_sources_that_decide_about_the_driver_layer_exist() -> None:
    assert all((wheels.REPOSITORY / name).exists() for name in wheels._SOURCES)


def test_newest_platform_of_wheels_is_that_of_the_releases_glibc() -> None:
    tags = platforms.wheel_platforms(platforms.MACHINES["arm64"], platforms.RELEASES["debian"])
    assert (tags[0], tags[-1]) == ("manylinux_2_36_aarch64", "manylinux2014_aarch64")
    assert "manylinux_2_28_aarch64" in tags


def test_every_base_has_a_python_that_the_driver_supports() -> None:
    supported = {line.rpartition(" ")[2] for line in wheels.project()["classifiers"] if "Python :: 3." in line}
    assert {release.python for release in platforms.RELEASES.values()} <= supported


def test_image_has_the_name_that_the_chart_asks_for() -> None:
    image = yaml.safe_load((helm.CHART / "values.yaml").read_text())["image"]
    assert f"{image['repository']}:v{dra_driver.__version__}" == driver.NAME


# The command line.


def test_missing_program_is_named_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cli.main(["--output", str(tmp_path / "image.tar")]) == 1
    assert capsys.readouterr().err == (
        "image: mmdebstrap is not on PATH: it is a Debian package of that name: apt-get install mmdebstrap\n"
    )


def test_failure_of_a_program_carries_its_last_words() -> None:
    with pytest.raises(ImageError, match="sh ended with 3: no such suite"):
        programs.run(["sh", "-c", "echo no such suite >&2; exit 3"], 20.0)


def test_program_that_hangs_is_ended() -> None:
    with pytest.raises(ImageError, match="sleep did not end within 0 s"):
        programs.run(["sleep", "60"], 0.05)


def test_unknown_base_is_a_usage_error_that_lists_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["--base", "alpine", "--output", "x.tar"])
    assert ended.value.code == 2
    assert "debian" in capsys.readouterr().err


def test_report_adds_up_the_layers(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "file").write_bytes(b"\0" * 2_000_000)
    layers.write(tree, tmp_path / "layer")
    layer = layers.read(tmp_path / "layer", "zeros")
    image = Image(name="a:b", architecture="amd64", layers=[layer, layer], entrypoint=("x",))
    text = cli.report(image, "sha256:0", tmp_path, 1, 2.5)
    assert "4.0 MB unpacked  in all" in text
    assert "1 of 2 layers from the cache" in text


@pytest.mark.e2e
@pytest.mark.timeout(900)
def test_image_that_was_built_runs_the_driver_of_this_checkout(tmp_path: Path) -> None:
    release, machine = platforms.RELEASES["debian"], platforms.native()
    image, _ = driver.image(driver.NAME, release, machine)
    for layer in image.layers:
        layers.unpack(layer.path, tmp_path)
    python = bytecode.Interpreter(tmp_path, release, machine)
    path = tmp_path / release.site_packages
    said = python.run(
        ["-c", f"import sys; sys.path.insert(0, '{path}'); sys.argv[1:] = ['--version']\n" + _launcher(tmp_path)]
    )
    assert said == f"dra-driver {dra_driver.__version__}\n"


def _launcher(root: Path) -> str:
    return (root / "usr/local/bin/dra-driver").read_text()
