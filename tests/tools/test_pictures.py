"""Pictures of commands: what these print now, the same each time, small, and without a word of the machine.

``make docs`` compares all of them with what the commands print; here one does that is quick.
"""

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from hack.pictures import draw, shots
from hack.pictures.__main__ import FOLDER, main

PICTURES = sorted(FOLDER.glob("shot-*.svg"))
SVG = "{http://www.w3.org/2000/svg}"


def shown(svg: str) -> list[str]:
    """The lines of a picture that are not empty."""
    return [text.text or "" for text in ET.fromstring(svg).iter(f"{SVG}text")]


def test_every_picture_has_a_command_and_the_other_way_round() -> None:
    assert [path.stem for path in PICTURES] == sorted(shots.SHOTS)


@pytest.mark.parametrize("name", shots.SHOTS)
def test_every_picture_is_on_a_page_with_a_text_for_those_who_cannot_see_it(name: str) -> None:
    pages = "\n".join(path.read_text(encoding="utf-8") for path in sorted(FOLDER.parent.glob("*.md")))
    assert re.search(rf"!\[[^\]]{{20,}}\]\(img/{name}\.svg\)", pages)


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.stem)
def test_picture_is_small_and_tells_nothing_of_a_machine(path: Path) -> None:
    svg = path.read_text(encoding="utf-8")
    assert len(svg) < 8000
    assert not re.search(r"/tmp|/home|/root|/work|/dev/shm|https?://(?!www\.w3\.org)", svg)
    assert shown(svg)[0].startswith("$ ")


def test_picture_is_what_the_command_prints_now(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check", "shot-validate"]) == 0, capsys.readouterr().err


def test_picture_of_something_else_is_told_and_drawn_anew(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("hack.pictures.__main__.FOLDER", tmp_path)
    picture = tmp_path / "shot-validate.svg"
    picture.write_text("<svg/>")
    assert main(["--check", "shot-validate"]) == 1
    assert "run python -m hack.pictures" in capsys.readouterr().err
    assert picture.read_text() == "<svg/>"
    assert main(["shot-validate"]) == 0
    assert picture.read_bytes() == (FOLDER / picture.name).read_bytes()


def test_command_that_ends_otherwise_than_expected_gives_no_picture() -> None:
    with pytest.raises(RuntimeError, match="exit code 1, want 0"):
        shots.taken(shots.Shot(("dra-driver validate claim.yaml",)))


def test_what_differs_from_run_to_run_is_made_the_same_and_tables_stay_straight() -> None:
    one = (
        "GPU-a1a398d3-8cc8-5bc7-acfb-744b1eccb8c7  claim=e96f89c4-fcae-4855-add3-cd5d499f4586-gpu-0 worker-0-gpu-2wj2q"
    )
    other = (
        "GPU-d1b3075d-eac2-51c7-b5ec-fec89cdae480  claim=caa6ced5-8c9f-42a9-8ce8-82021429c123-gpu-0 worker-0-gpu-79szs"
    )
    ends = ("came out right, in 4.0 s.", "came out right, in 5.3 s.")
    texts = [shots.steady(f"/tmp/x/{text}\n{end}", "/tmp/x") for text, end in zip((one, other), ends, strict=True)]
    assert texts[0] == texts[1]
    assert texts[0].startswith("GPU-00000001-0000-4000-8000-000000000001  claim=00000002-")
    assert len(texts[0].split("\n")[0]) == len(one)


def test_two_gpus_stay_two() -> None:
    text = shots.steady("GPU-a1a398d3-8cc8-5bc7-acfb-744b1eccb8c7 GPU-d1b3075d-eac2-51c7-b5ec-fec89cdae480", "/tmp/x")
    assert len(set(text.split())) == 2


def test_long_line_is_folded_and_signs_of_xml_are_kept() -> None:
    line = "a <b> & " + "x" * draw.MOST_COLUMNS
    svg = draw.svg(["$ cat it", line])
    assert "".join(shown(svg)) == "$ cat it" + line
    assert len(shown(svg)) == 3
    assert [text.get("class") for text in ET.fromstring(svg).iter(f"{SVG}text")] == ["typed", None, None]
