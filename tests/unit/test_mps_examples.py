"""The manifests of docs/mps.md and hack/cluster/mps.yaml: validate finds nothing, and they ask for what is said."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_driver.commands.main import main
from dra_driver_api.config import Mps, decode

ROOT = Path(__file__).parents[2]
GATES = "--feature-gates=MPSSupport=true"


def documents(name: str) -> list[dict[str, Any]]:
    """All manifests of a file, those in fences where it is a page."""
    text = (ROOT / name).read_text(encoding="utf-8")
    blocks = re.findall(r"^```yaml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL) if name.endswith(".md") else [text]
    return [document for block in blocks for document in yaml.safe_load_all(block)]


@pytest.fixture(params=["docs/mps.md", "hack/cluster/mps.yaml"])
def found(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    return documents(request.param)


def test_validate_finds_nothing(
    found: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mps.yaml"
    path.write_text(yaml.safe_dump(found[0]))
    assert main(["validate", GATES, str(path)]) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith("0 problems, 0 notes")


def test_pods_share_the_claim_that_asks_for_mps(found: list[dict[str, Any]]) -> None:
    claim, deployment = found
    (entry,) = claim["spec"]["devices"]["config"]
    config = decode(entry["opaque"]["parameters"])
    assert isinstance(config.sharing, Mps)
    assert config.sharing.mps_config.default_active_thread_percentage == 25
    pods = deployment["spec"]["template"]["spec"]
    assert pods["resourceClaims"] == [{"name": "gpu", "resourceClaimName": claim["metadata"]["name"]}]
    assert deployment["spec"]["replicas"] == 4
