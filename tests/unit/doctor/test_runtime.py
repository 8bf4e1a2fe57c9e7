import os
from pathlib import Path

import pytest

from dra_driver.doctor.findings import Status
from tests import node_tree
from tests.driver_tree import BOTTLEROCKET
from tests.node_tree import CONTAINERD_3, NodeTree, healthy
from tests.unit.doctor.conftest import Examine, Findings, Machine

V2 = 'version = 2\n[plugins."io.containerd.grpc.v1.cri"]\n'
V3 = 'version = 3\n[plugins."io.containerd.cri.v1.runtime"]\n'
OLD = "containerd github.com/containerd/containerd v1.7.27 05044ec\n"
NEW = "containerd github.com/containerd/containerd/v2 v2.1.0 061792f\n"


def _with(tree: NodeTree, run: Examine, version: str = "", **changes: object) -> Findings:
    machine = Machine()
    machine.versions["containerd"] = version
    return run(tree, machine, **changes)


@pytest.mark.parametrize(
    ("text", "version", "enabled"),
    [
        pytest.param(V3, NEW, True, id="2.x, nothing said"),
        pytest.param(V3 + "enable_cdi = false\n", NEW, False, id="2.x, off"),
        pytest.param(V2, NEW, True, id="2.x reads old files too"),
        pytest.param(V2, OLD, False, id="1.7, nothing said"),
        pytest.param(V2 + "enable_cdi = true\n", OLD, True, id="1.7, on"),
        pytest.param(V3, "", True, id="version unknown, file of 2.x"),
        pytest.param(V2, "", None, id="version unknown, file of both"),
        pytest.param("[plugins.cri]\nenable_cdi = true\n", "", True, id="file of version 1"),
    ],
)
def test_cdi_is_on_or_off_as_containerd_has_it(
    tmp_path: Path, run: Examine, text: str, version: str, enabled: bool | None
) -> None:
    found = _with(healthy(tmp_path).containerd(text), run, version).of("containerd")

    expected = {True: Status.OK, False: Status.PROBLEM, None: Status.WARNING}[enabled]
    assert (found.facts["enableCdi"], found.status) == (enabled, expected)


def test_directory_that_containerd_does_not_read_is_a_problem_with_both_remedies(tmp_path: Path, run: Examine) -> None:
    tree = healthy(tmp_path).containerd(V3 + 'cdi_spec_dirs = ["/etc/cdi", "/opt/cdi"]\n')

    found = _with(tree, run, NEW)

    assert set(found.problems) == {"containerd"}
    assert found.of("containerd").message == (
        "containerd 2.1.0 reads CDI specs from /etc/cdi, /opt/cdi, this driver writes them to /var/run/cdi"
    )
    assert "set --cdi-root=/opt/cdi" in found.of("containerd").remedy
    assert "cdi_spec_dirs" in found.of("containerd").remedy


@pytest.mark.parametrize("directory", ["/run/cdi", "/var/run/cdi"])
def test_var_run_is_run(tmp_path: Path, run: Examine, directory: str) -> None:
    tree = healthy(tmp_path).containerd(V3 + f'cdi_spec_dirs = ["{directory}"]\n')

    assert _with(tree, run, NEW, cdi_root=Path("/run/cdi")).problems == {}


def test_imported_files_are_read_like_containerd_does(tmp_path: Path, run: Examine) -> None:
    tree = healthy(tmp_path)
    tree.containerd('imports = ["conf.d/*.toml", "/opt/extra.toml"]\n' + V3 + "enable_cdi = false\n")
    tree.add("/etc/containerd/conf.d/10-cdi.toml", V3 + "enable_cdi = true\n")
    tree.add("/etc/containerd/conf.d/20-dirs.toml", V3 + 'cdi_spec_dirs = ["/opt/cdi"]\n')
    tree.add("/opt/extra.toml", V3 + 'cdi_spec_dirs = ["/var/run/cdi"]\n')

    found = _with(tree, run, NEW).of("containerd")

    assert found.status is Status.OK
    assert found.facts["cdiSpecDirs"] == ["/var/run/cdi"]
    assert found.facts["files"] == [
        "/etc/containerd/config.toml",
        "/etc/containerd/conf.d/10-cdi.toml",
        "/etc/containerd/conf.d/20-dirs.toml",
        "/opt/extra.toml",
    ]


def test_containerd_before_2_takes_the_last_files_section_whole(tmp_path: Path, run: Examine) -> None:
    tree = healthy(tmp_path)
    tree.containerd('imports = ["/opt/extra.toml"]\n' + V2 + "enable_cdi = true\n")
    tree.add("/opt/extra.toml", V2 + "max_container_log_line_size = 1\n")

    assert _with(tree, run, OLD).of("containerd").facts["enableCdi"] is False


def test_circle_of_imports_ends(tmp_path: Path, run: Examine) -> None:
    tree = healthy(tmp_path).containerd('imports = ["/etc/containerd/config.toml"]\n' + V3)

    assert _with(tree, run, NEW).problems == {}


@pytest.mark.parametrize("text", ['"../containerd/config.toml"', '"./config.toml"', '"again/config.toml"'])
def test_circle_of_relative_imports_ends(tmp_path: Path, run: Examine, text: str) -> None:
    tree = healthy(tmp_path).containerd(f"imports = [{text}]\n" + V3)
    tree.path("/etc/containerd/again").symlink_to(".")

    assert _with(tree, run, NEW).of("containerd").facts["files"] == ["/etc/containerd/config.toml"]


def test_star_in_a_folder_of_an_import_is_expanded(tmp_path: Path, run: Examine) -> None:
    tree = healthy(tmp_path).containerd('imports = ["/etc/containerd/c*/a.toml"]\n' + V3)
    tree.add("/etc/containerd/conf.d/a.toml", V3).add("/etc/containerd/certs/other.toml", V3)

    assert _with(tree, run, NEW).of("containerd").facts["files"] == [
        "/etc/containerd/config.toml",
        "/etc/containerd/conf.d/a.toml",
    ]


@pytest.mark.parametrize(("value", "shown"), [('"3"', "'3'"), ("[3]", "[3]"), ("true", "True"), ("3.0", "3.0")])
@pytest.mark.parametrize("imported", [False, True])
def test_version_that_is_no_number_is_named(
    tmp_path: Path, run: Examine, value: str, shown: str, imported: bool
) -> None:
    tree = healthy(tmp_path).containerd('imports = ["/etc/more.toml"]\n' + V3)
    file = "/etc/more.toml" if imported else "/etc/containerd/config.toml"
    tree.add("/etc/more.toml", V3).add(file, f"version = {value}\n")

    found = _with(tree, run).of("containerd")

    assert found.status is Status.WARNING
    assert found.message == f"{file}: version: found {shown}, must be a number, e.g. 3"


@pytest.mark.parametrize("made", ["nothing", "directory", "pipe", "no name"])
def test_import_that_is_no_file_is_not_put_down_to_rights(tmp_path: Path, run: Examine, made: str) -> None:
    name = "x\\u0000" if made == "no name" else "x"
    tree = healthy(tmp_path).containerd(f'imports = ["/etc/{name}"]\n' + V3)
    if made == "directory":
        tree.path("/etc/x").mkdir()
    elif made == "pipe":
        os.mkfifo(tree.path("/etc/x"))

    found = _with(tree, run).of("containerd")

    assert found.status is Status.WARNING
    assert "/etc/x" in found.message
    assert found.remedy == "mend the file: containerd reads it when it starts"


@pytest.mark.parametrize(
    "text",
    ["version = \n", 'imports = ["/gone.toml"]\n', "x = " + "[" * 100_000],
    ids=["no TOML", "missing import", "deep"],
)
def test_configuration_that_cannot_be_read_is_told_by_file(tmp_path: Path, run: Examine, text: str) -> None:
    found = _with(healthy(tmp_path).containerd(text), run, NEW).of("containerd")

    assert found.status is Status.WARNING
    assert ".toml" in found.message


def test_odd_values_in_the_configuration_do_not_end_the_examination(tmp_path: Path, run: Examine) -> None:
    text = 'version = 3\nimports = 7\n[plugins]\n"io.containerd.cri.v1.runtime" = "x"\n'

    assert _with(healthy(tmp_path).containerd(text), run, NEW).problems == {}


def test_distributions_own_containerd_counts_before_one_that_also_lies_there(tmp_path: Path, run: Examine) -> None:
    tree = healthy(tmp_path)
    own = "/var/lib/rancher/k3s/agent/etc/containerd/config.toml"
    tree.containerd(V3 + "enable_cdi = false\n", own)

    assert _with(tree, run, NEW).of("containerd").facts["files"] == [own]


def test_containerd_without_a_configuration_has_its_defaults(tmp_path: Path, run: Examine) -> None:
    tree = healthy(tmp_path)
    tree.path("/etc/containerd/config.toml").unlink()

    assert _with(tree, run, OLD).problems.keys() == {"containerd"}
    assert _with(tree, run, NEW).problems == {}


def test_cri_o_is_known_to_read_cdi(tmp_path: Path, run: Examine) -> None:
    tree = healthy(tmp_path).add("/etc/crio/crio.conf.d/10-crun.conf")
    tree.path("/etc/containerd/config.toml").unlink()

    assert "CRI-O" in _with(tree, run).of("containerd").message


def test_nvidia_as_the_default_runtime_lets_images_see_gpus_without_a_claim(tmp_path: Path, run: Examine) -> None:
    tree = healthy(tmp_path).containerd(CONTAINERD_3.format(runtime="nvidia"))
    open_to_all = run(tree, Machine())
    tree.add("/etc/nvidia-container-runtime/config.toml",
             "#x = 1\naccept-nvidia-visible-devices-envvar-when-unprivileged = false\n")  # fmt: skip

    assert "NVIDIA_VISIBLE_DEVICES=all" in open_to_all.warnings["default-runtime"]
    assert "default-runtime" not in run(tree, Machine()).warnings


def test_bottlerockets_etc_is_no_place_for_specs(tmp_path: Path, run: Examine) -> None:
    tree = healthy(tmp_path, BOTTLEROCKET, node_tree.BOTTLEROCKET)

    found = run(tree, Machine(), cdi_root=Path("/etc/cdi"))

    assert found.of("cdi-root").remedy == "set --cdi-root=/var/run/cdi"
    assert found.of("cdi-root").status is Status.WARNING


def test_specs_of_this_driver_are_counted(tmp_path: Path, run: Examine) -> None:
    tree = healthy(tmp_path).add("/var/run/cdi/k8s.gpu.nvidia.com-claim_1.yaml").add("/var/run/cdi/nvidia.yaml")

    assert run(tree, Machine()).of("cdi-root").facts["specs"] == 1


def test_cdi_root_that_is_a_file_is_a_problem(tmp_path: Path, run: Examine) -> None:
    tree = healthy(tmp_path).add("/var/run/cdi")

    assert run(tree, Machine()).problems == {"cdi-root": "/var/run/cdi is no directory"}
