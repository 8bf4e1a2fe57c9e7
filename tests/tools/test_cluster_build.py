"""The cluster's programs: the go.mod of Kubernetes, and what counts as built."""

import re
from pathlib import Path

import pytest

from hack.cluster import build, gomodule, versions
from hack.cluster.build import Product
from hack.cluster.errors import ClusterError

UPSTREAM = """\
module k8s.io/kubernetes

go 1.26.0

godebug default=go1.26

require (
\tgithub.com/spf13/cobra v1.10.2
\tk8s.io/api v0.0.0
)

require (
\tgo.etcd.io/etcd/server/v3 v3.6.8 // indirect
)

replace (
\tk8s.io/api => ./staging/src/k8s.io/api
\tk8s.io/streaming => ./staging/src/k8s.io/streaming
)
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "dra-driver-gpu" / "cluster"


def fill(folder: Path) -> None:
    (folder / "program").write_text("built")


def fail(folder: Path) -> None:
    (folder / "program").write_text("half")
    raise ClusterError("cut short")


def test_staging_modules_are_replaced_by_their_published_versions() -> None:
    lines = gomodule.write("1.36.3", UPSTREAM).splitlines()
    assert [line for line in lines if "=>" in line] == [
        "\tk8s.io/api => k8s.io/api v0.36.3",
        "\tk8s.io/streaming => k8s.io/streaming v0.36.3",
    ]


def test_etcd_is_the_version_that_kubernetes_requires() -> None:
    assert "\tgo.etcd.io/etcd/server/v3 v3.6.8" in gomodule.write("1.36.3", UPSTREAM).splitlines()


def test_runtime_defaults_of_go_are_those_of_kubernetes() -> None:
    assert "godebug default=go1.26" in gomodule.write("1.36.3", UPSTREAM).splitlines()


def test_go_mod_without_staging_modules_is_refused() -> None:
    with pytest.raises(ClusterError, match=r"v1\.36\.3 replaces no staging modules"):
        gomodule.write("1.36.3", UPSTREAM.split("replace", maxsplit=1)[0])


def test_components_are_told_their_version() -> None:
    assert "version.gitVersion=v1.34.4 -X k8s.io/component-base/version.gitMajor=1" in gomodule.link_flags("1.34.4")


@pytest.mark.parametrize("version", versions.KUBERNETES)
def test_locked_requirements_are_of_their_version(version: str) -> None:
    text = (build.SOURCES / "kubernetes" / version / "go.mod").read_text()
    assert f"k8s.io/kubernetes v{version}" in text
    assert f"k8s.io/kubelet => k8s.io/kubelet {versions.staging(version)}" in text


@pytest.mark.parametrize("text", ["1.36", "v1.36.3", "1.33.9", "2.0.0", ""])
def test_version_without_the_stable_api_is_refused(text: str) -> None:
    with pytest.raises(ClusterError, match=r"want 1\.34\.0 or newer"):
        versions.kubernetes(text)


def test_product_that_is_there_is_not_built_again(cache: Path) -> None:
    place = build.have(Product("tool", "0123456789ab", fill), print)
    again = build.have(Product("tool", "0123456789ab", fail), print)
    assert again == place
    assert (place / "program").read_text() == "built"


def test_build_that_was_cut_short_leaves_nothing_that_counts(cache: Path) -> None:
    with pytest.raises(ClusterError):
        build.have(Product("tool", "0123456789ab", fail), print)
    assert [path.name for path in cache.iterdir()] == [".tool.lock"]


def test_products_of_older_sources_are_removed(cache: Path) -> None:
    old = build.have(Product("kubernetes-1.36.3", "0123456789ab", fill), print)
    other = build.have(Product("kubernetes-1.34.4", "0123456789ab", fill), print)
    build.have(Product("kubernetes-1.36.3", "ba9876543210", fill), print)
    assert (old.exists(), other.exists()) == (False, True)


def test_programs_are_gathered_in_one_folder(cache: Path) -> None:
    folders = [build.have(Product(name, "0123456789ab", fill), print) for name in ("one", "two")]
    (folders[1] / "program").rename(folders[1] / "other")
    gathered = build.gather(cache / "1.36.3" / "bin", folders)
    assert sorted(link.name for link in gathered.iterdir()) == ["other", "program"]


def test_gathered_folder_follows_a_new_product(cache: Path) -> None:
    old = build.have(Product("tool", "0123456789ab", fill), print)
    build.gather(cache / "bin", [old])
    new = build.have(Product("tool", "ba9876543210", fill), print)
    assert (build.gather(cache / "bin", [new]) / "program").resolve() == new / "program"


@pytest.mark.parametrize(
    ("tool", "module"),
    [("containerd", "github.com/containerd/containerd/v2"), ("nvidia", "github.com/NVIDIA/nvidia-container-toolkit")],
)
def test_tool_says_the_version_that_is_built(tool: str, module: str) -> None:
    required = re.search(rf"{module} v(\S+)", (build.SOURCES / tool / "go.mod").read_text())
    assert required is not None
    assert re.search(rf"ersion=v?{re.escape(required[1])}(\s|$)", build.TOOL_FLAGS[tool])
