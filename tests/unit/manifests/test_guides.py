"""The guides to nodes: what they refer to is there, and what they have people apply is right."""

import re
from pathlib import Path

import pytest

from dra_driver.commands.main import main
from dra_driver.scheduling.node_terms import untolerated
from tests.unit.manifests import groups

ROOT = groups.MANIFESTS.parent
GUIDES = [ROOT / "docs" / name for name in ("eks.md", "karpenter.md", "bottlerocket.md")]
WORKLOAD = groups.MANIFESTS / "eks/shared-gpu.yaml"


def headings(page: Path) -> set[str]:
    """Anchors of a page, as GitHub makes them."""
    found = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^a-z0-9 -]", "", text.lower()).replace(" ", "-") for text in found}


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.stem)
def test_links_lead_to_something(guide: Path) -> None:
    links = re.findall(r"\]\(([^)]+)\)", guide.read_text(encoding="utf-8"))
    assert links
    for link in links:
        name, _, anchor = link.partition("#")
        target = (guide.parent / name).resolve()
        assert target.is_file(), link
        assert not anchor or anchor in headings(target), link


@pytest.mark.parametrize("file", [*GUIDES, *groups.FILES], ids=lambda file: file.name)
def test_paths_in_text_are_those_of_files(file: Path) -> None:
    for path in re.findall(r"\b(?:manifests|docs)/[\w./-]*\w", file.read_text(encoding="utf-8")):
        assert (ROOT / path).exists(), path


def test_guide_to_karpenter_names_a_pool_that_is_there() -> None:
    names = set(re.findall(r"\bgpu-dra-[a-z0-9]+\b", GUIDES[1].read_text(encoding="utf-8")))
    assert names <= {groups.one(path, "NodePool")["metadata"]["name"] for path in groups.POOLS}
    assert names


def test_pods_to_try_a_node_with_may_go_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "--feature-gates=TimeSlicingSettings=true", str(WORKLOAD)]) == 0, capsys.readouterr()
    pods = [document for document in groups.documents(WORKLOAD) if document["kind"] == "Pod"]
    assert len(pods) == 2
    for pod in pods:
        for group in [*groups.of_eksctl(), *groups.of_karpenter()]:
            assert not untolerated(group.taints, pod["spec"]["tolerations"])
