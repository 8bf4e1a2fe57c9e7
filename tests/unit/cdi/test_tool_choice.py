"""Which programs are used for containers, as the settings say and the node allows; and how often they are run."""

import argparse
import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dra_driver import settings
from dra_driver.cdi.driver_files import DriverFiles
from dra_driver.cdi.spec import Edits
from dra_driver.cdi.tools import EditsSource, HookMode, Tools
from dra_driver.model.errors import CdiError
from dra_driver.settings.tools import tools
from tests.driver_tree import VERSION, DriverTree, driver_files
from tests.unit.cdi import fake_tools


class Node:
    """A driver's process with an image of its own, on a host with a driver."""

    def __init__(self, base: Path, tree: DriverTree) -> None:
        self.tree = tree
        self.own = base / "image/usr/bin"
        self.tools = Tools(shared=base / "plugins", own=(self.own,))

    def with_hook(self) -> "Node":
        fake_tools.hook(self.own / "nvidia-cdi-hook")
        return self

    def with_ctk(self) -> "Node":
        fake_tools.ctk(self.own / "nvidia-ctk", fake_tools.generated(self.tree))
        return self

    def files(self, edits: EditsSource = EditsSource.AUTO, hooks: HookMode = HookMode.AUTO) -> DriverFiles:
        tools = replace(self.tools, edits=edits, hooks=hooks)
        return driver_files(self.tree.roots, tools)

    def ctk_runs(self) -> int:
        return len(fake_tools.calls(self.own / "nvidia-ctk"))


@pytest.fixture
def node(tmp_path: Path, tree: DriverTree) -> Node:
    return Node(tmp_path, tree)


def _described(edits: Edits) -> tuple[int, bool]:
    """How many hooks, and whether the files are nvidia-ctk's."""
    return len(edits.hooks), not any("firmware" in mount.container_path for mount in edits.mounts)


@pytest.mark.parametrize("edits", [EditsSource.AUTO, EditsSource.BUILTIN])
def test_host_without_the_toolkit_needs_no_hooks(node: Node, edits: EditsSource) -> None:
    assert _described(node.with_ctk().files(edits).common(VERSION)) == (0, False)


def test_hooks_are_used_where_the_program_is(node: Node) -> None:
    assert _described(node.with_hook().files().common(VERSION)) == (5, False)


def test_files_are_nvidias_where_both_programs_are(node: Node) -> None:
    edits = node.with_hook().with_ctk().files().common(VERSION)

    assert _described(edits) == (1, True)
    assert {hook.path for hook in edits.hooks} == {str(node.tools.shared / "nvidia-cdi-hook")}


def test_device_nodes_are_ours_whoever_finds_the_files(node: Node) -> None:
    edits = node.with_hook().with_ctk().files().common(VERSION)

    assert [node.path for node in edits.device_nodes] == ["/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidiactl"]


def test_toolkit_is_left_alone_if_the_settings_say_so(node: Node) -> None:
    files = node.with_hook().with_ctk().files(EditsSource.BUILTIN, HookMode.NONE)

    assert _described(files.common(VERSION)) == (0, False)
    assert fake_tools.calls(node.own / "nvidia-cdi-hook") == []
    assert node.ctk_runs() == 0
    assert not node.tools.shared.exists()


def test_hooks_go_with_our_own_files(node: Node) -> None:
    assert _described(node.with_hook().with_ctk().files(EditsSource.BUILTIN).common(VERSION)) == (5, False)
    assert node.ctk_runs() == 0


def test_broken_generator_is_told_once_and_done_without(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    fake_tools.ctk(node.with_hook().own / "nvidia-ctk", {}, code=1, saying="NVML is sulking")
    files = node.files()

    with caplog.at_level(logging.INFO):
        assert [_described(files.common(VERSION)) for _ in range(3)] == [(5, False)] * 3

    assert node.ctk_runs() == 1
    assert len([record for record in caplog.records if "NVML is sulking" in record.message]) == 1


def test_missing_hook_program_is_an_error_if_it_is_asked_for(node: Node) -> None:
    with pytest.raises(
        CdiError, match=r"^--cdi-hooks=nvidia-cdi-hook: there is no nvidia-cdi-hook in .*--cdi-hooks=none$"
    ):
        node.files(hooks=HookMode.NVIDIA_CDI_HOOK).common(VERSION)


def test_missing_generator_is_an_error_if_it_is_asked_for(node: Node) -> None:
    with pytest.raises(CdiError, match=r"^--cdi-edits=nvidia-ctk: there is no nvidia-ctk in .*--cdi-edits=builtin$"):
        node.with_hook().files(EditsSource.NVIDIA_CTK).common(VERSION)


def test_generator_that_is_asked_for_needs_hooks(node: Node) -> None:
    with pytest.raises(
        CdiError, match=r"^--cdi-edits=nvidia-ctk: its edits need nvidia-cdi-hook .*there is no nvidia-cdi"
    ):
        node.with_ctk().files(EditsSource.NVIDIA_CTK).common(VERSION)


def test_host_without_ldconfig_needs_no_hooks(node: Node) -> None:
    (node.tree.root / "usr/sbin/ldconfig").unlink()

    assert _described(node.with_hook().files().common(VERSION)) == (0, False)
    with pytest.raises(CdiError, match="the host has no /sbin/ldconfig or "):
        node.files(hooks=HookMode.NVIDIA_CDI_HOOK).common(VERSION)


def test_texts_fit_an_event(node: Node) -> None:
    for edits, hooks in ((EditsSource.NVIDIA_CTK, HookMode.AUTO), (EditsSource.AUTO, HookMode.NVIDIA_CDI_HOOK)):
        with pytest.raises(CdiError) as caught:
            node.files(edits, hooks).common(VERSION)
        assert len(str(caught.value)) < 1000
        assert "\n" not in str(caught.value)


def test_programs_are_run_once_as_long_as_nothing_changes(node: Node) -> None:
    files = node.with_hook().with_ctk().files()

    assert len({id(files.common(VERSION)) for _ in range(5)}) == 1

    assert node.ctk_runs() == 1
    assert len(fake_tools.calls(node.own / "nvidia-cdi-hook")) == 1


def test_claims_do_not_wait_for_programs_that_were_run_ahead(node: Node) -> None:
    files = node.with_hook().with_ctk().files()
    node.tree.node("nvidiactl").unlink()
    files.look_ahead(VERSION)
    node.tree.make_nodes("nvidiactl")

    assert _described(files.common(VERSION)) == (1, True)
    assert node.ctk_runs() == 1


def _new_library(node: Node) -> None:
    node.tree.add_library(f"usr/lib64/libnvidia-new.so.{VERSION}")


def _new_config(node: Node) -> None:
    node.tree.add("etc/vulkan/icd.d/nvidia_icd.json")


def _new_generator(node: Node) -> None:
    fake_tools.ctk(node.own / "nvidia-ctk", fake_tools.generated(node.tree), saying="a newer one")


def _new_hook(node: Node) -> None:
    fake_tools.hook(node.own / "nvidia-cdi-hook", ["create-symlinks", "update-ldcache", "hook-of-tomorrow"])


def _copy_removed(node: Node) -> None:
    (node.tools.shared / "nvidia-cdi-hook").unlink()


def _copy_lost_its_mode(node: Node) -> None:
    (node.tools.shared / "nvidia-cdi-hook").chmod(0o644)


def _library_written_in_place(node: Node) -> None:
    node.tree.library("libcuda").write_bytes(node.tree.library("libcuda").read_bytes())


@pytest.mark.parametrize(
    "change",
    [
        _new_library,
        _new_config,
        _new_generator,
        _new_hook,
        _copy_removed,
        _copy_lost_its_mode,
        _library_written_in_place,
    ],
)
def test_programs_are_run_again_when_files_change(node: Node, change: Callable[[Node], None]) -> None:
    files = node.with_hook().with_ctk().files()
    files.common(VERSION)

    change(node)
    files.common(VERSION)
    files.common(VERSION)

    assert node.ctk_runs() == 2
    assert (node.tools.shared / "nvidia-cdi-hook").exists()


def test_new_device_node_runs_no_program(node: Node) -> None:
    files = node.with_hook().with_ctk().files()
    files.common(VERSION)

    node.tree.make_nodes("nvidia-modeset")

    assert "/dev/nvidia-modeset" in {each.path for each in files.common(VERSION).device_nodes}
    assert node.ctk_runs() == 1


def test_new_driver_is_asked_for_anew_and_the_old_result_never_given_for_it(node: Node) -> None:
    files = node.with_hook().with_ctk().files()
    files.common(VERSION)
    node.tree.install("590.10.01")

    edits = files.common("590.10.01")

    assert _described(edits) == (5, False)
    assert [mount.host_path for mount in edits.mounts if VERSION in mount.host_path] == []


def test_toolkit_that_comes_later_is_used_from_then_on(node: Node) -> None:
    files = node.files()
    assert _described(files.common(VERSION)) == (0, False)

    node.with_hook()
    assert _described(files.common(VERSION)) == (5, False)
    node.with_ctk()
    assert _described(files.common(VERSION)) == (1, True)


def test_hosts_program_that_is_made_executable_later_is_used_from_then_on(node: Node) -> None:
    program = fake_tools.hook(node.tree.path("usr/bin/nvidia-cdi-hook"))
    program.chmod(0o644)
    files = node.files()
    assert _described(files.common(VERSION)) == (0, False)

    program.chmod(0o755)

    assert _described(files.common(VERSION)) == (5, False)


def test_edits_that_break_rules_are_done_without(node: Node) -> None:
    document = fake_tools.generated(node.tree)
    document["containerEdits"]["hooks"][0]["hookName"] = "whenever"
    fake_tools.ctk(node.with_hook().own / "nvidia-ctk", document)

    assert _described(node.files().common(VERSION)) == (5, False)


def test_given_generator_that_is_not_there_is_an_error_also_with_auto(node: Node) -> None:
    node.with_hook().tools = replace(node.tools, ctk_path=Path("/nope"))

    with pytest.raises(CdiError, match=r"^--nvidia-ctk-path \(NVIDIA_CTK_PATH\): found /nope, there is no such"):
        node.files().common(VERSION)


def test_claims_that_wait_for_a_failing_program_share_its_failure(node: Node) -> None:
    runs = 4
    fake_tools.program(
        node.with_hook().own / "nvidia-ctk",
        f"#!/bin/sh\necho run >> {node.own.parent}/nvidia-ctk.calls\nsleep 1\nexit 1\n",
    )
    files = node.files(EditsSource.NVIDIA_CTK)
    failures: list[str] = []

    def ask() -> None:
        try:
            files.common(VERSION)
        except CdiError as error:
            failures.append(str(error))

    threads = [threading.Thread(target=ask) for _ in range(runs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(failures) == runs
    assert set(failures) == {failures[0]}
    assert node.ctk_runs() < runs


@pytest.mark.parametrize(
    ("flags", "edits", "hooks"),
    [
        ([], EditsSource.BUILTIN, HookMode.NONE),
        (["--cdi-edits=nvidia-ctk"], EditsSource.NVIDIA_CTK, HookMode.AUTO),
        (["--cdi-hooks=nvidia-cdi-hook"], EditsSource.BUILTIN, HookMode.NVIDIA_CDI_HOOK),
    ],
)
def test_simulated_node_uses_what_is_asked_for_and_what_that_needs(
    flags: list[str], edits: EditsSource, hooks: HookMode
) -> None:
    parser = argparse.ArgumentParser()
    settings.add_options(parser)
    found = tools(settings.load(parser.parse_args(["--simulated-node=h200x2", *flags]), {"NODE_NAME": "node-a"}))

    assert (found.edits, found.hooks) == (edits, hooks)
