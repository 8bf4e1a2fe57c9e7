"""How the demo tells what happened."""

import argparse
import json
from collections.abc import Generator
from pathlib import Path

import pytest

from dra_driver.commands import demo as command
from dra_driver.model.errors import SettingError
from dra_driver.simulator import demo
from dra_driver.simulator.stage import Scene


def good() -> Scene:
    scene = Scene("a-good", "A good scene", "It goes well.", "shared-claim.yaml")
    entry = {"name": "p", "container": "c", "claim": "l", "request": "r", "gpu_uuid": "GPU-1", "cdi_devices": ["k=1"]}
    scene.pods = [entry]
    scene.check("GPUs", 1, 1)
    return scene


def wrong() -> Scene:
    scene = Scene("b-wrong", "A wrong scene", "It goes wrong.", "shared-claim.yaml")
    scene.check("GPUs", 2, 1)
    return scene


def broken() -> Scene:
    return Scene("c-broken", "A broken scene", "It breaks.", "shared-claim.yaml", error="the driver is gone")


def run(monkeypatch: pytest.MonkeyPatch, scenes: list[Scene], *flags: str) -> int:
    def play(*_: object) -> Generator[Scene, None, None]:
        yield from scenes

    monkeypatch.setattr(demo, "play", play)
    parser = argparse.ArgumentParser()
    command.configure(parser)
    return command.run(parser.parse_args(flags))


def test_good_story_ends_with_0(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, [good()]) == 0
    printed = capsys.readouterr().out
    assert "a. A good scene" in printed
    assert "p    c          l      r        GPU-1  k=1" in printed
    assert "ok  GPUs: 1" in printed
    assert "All 1 scenes came out right" in printed


def test_wrong_scene_shows_expected_and_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, [good(), wrong()]) == 1
    printed = capsys.readouterr().out
    assert "NOT OK  GPUs: expected 2, found 1" in printed
    assert "1 of 2 scenes went wrong: b-wrong" in printed


def test_broken_scene_shows_why(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, [broken()]) == 1
    assert "NOT OK  the driver is gone" in capsys.readouterr().out


def test_json_of_a_wrong_scene_goes_with_reasons_beside_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, [good(), wrong(), broken()], "-o", "json") == 1
    printed = capsys.readouterr()
    parsed = json.loads(printed.out)
    assert ([s["ok"] for s in parsed["scenes"]], parsed["ok"]) == ([True, False, False], False)
    assert printed.err == "b-wrong: GPUs: expected 2, found 1\nc-broken: the driver is gone\n"


def test_scene_without_checks_is_not_right() -> None:
    assert not Scene("x", "", "").ok


@pytest.mark.parametrize("node", ["l4x1", "a100x8-mig"])
def test_node_with_too_few_full_gpus_is_refused(node: str) -> None:
    with pytest.raises(SettingError, match=f"--simulated-node {node} offers [01] full GPUs: the demo needs 2 or more"):
        demo.check_scenario(node)


@pytest.mark.parametrize("text", ["0", "-3", "nan", "soon", "99999"])
def test_time_limit_out_of_range_is_refused(text: str) -> None:
    parser = argparse.ArgumentParser(exit_on_error=False)
    command.configure(parser)
    with pytest.raises(argparse.ArgumentError, match=f"'{text}' is not a number of seconds from 1 to 3600"):
        parser.parse_args([f"--timeout={text}"])


def test_directory_is_removed_after_an_error() -> None:
    made: list[Path] = []

    def fail() -> None:
        with demo.directory(keep=False) as root:
            (root / "file").write_text("")
            made.append(root)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert [root.exists() for root in made] == [False]


def test_directory_leaves_room_for_socket_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/tmp/" + "d" * 90)
    with demo.directory(keep=False) as root:
        assert len(f"{root}/plugins/gpu.nvidia.com/dra.sock") <= 107
