"""The Containerfile, which no engine builds here, agrees with what ``make image`` makes."""

import re
from pathlib import Path

import dra_driver
from hack.cluster import build

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "Containerfile").read_text(encoding="utf-8")


def test_hook_program_is_of_the_version_and_built_with_the_flags_of_our_own_image() -> None:
    module = (build.SOURCES / "nvidia/go.mod").read_text(encoding="utf-8")
    (version,) = re.findall(r"nvidia-container-toolkit v(\S+)", module)
    assert f"cmd/nvidia-cdi-hook@v{version}\n" in TEXT
    assert build.TOOL_FLAGS["nvidia"] in TEXT


def test_everything_that_is_copied_is_there_and_not_ignored() -> None:
    ignored = (ROOT / ".containerignore").read_text(encoding="utf-8").splitlines()
    for line in re.findall(r"^COPY (?!--from)(.+)$", TEXT, re.MULTILINE):
        *sources, _ = line.split()
        for source in sources:
            assert (ROOT / source).exists(), source
            assert f"!{source}" in ignored


def test_example_in_the_comment_has_this_version() -> None:
    assert f"dra-driver-gpu:v{dra_driver.__version__}" in TEXT


def test_no_stage_takes_what_the_one_before_it_does_not_make() -> None:
    stages = re.findall(r"^FROM \S+ AS (\w+)$", TEXT, re.MULTILINE)
    assert set(re.findall(r"--from=(\w+)", TEXT)) <= set(stages)
