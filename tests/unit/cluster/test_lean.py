import subprocess
import sys

import pytest

LEAN = "from dra_driver.cluster import lean; client = lean.load()\n"


def run(code: str) -> str:
    """Run in a fresh interpreter: what is imported here is no measure."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_load_imports_neither_models_nor_oauth_nor_yaml() -> None:
    loaded = run(LEAN + "import sys; print(*sys.modules)").split()
    unwanted = ("kubernetes.client.api", "kubernetes.client.models", "kubernetes.dynamic", "oauthlib", "yaml")
    assert [name for name in loaded if name.startswith(unwanted)] == []


def test_load_works_when_the_client_was_imported_whole() -> None:
    code = "import kubernetes.client\n" + LEAN
    assert run(code + "print(client.Configuration is kubernetes.client.Configuration)") == "True"


def test_load_may_be_called_again() -> None:
    assert run(LEAN + "print(lean.load() == client)") == "True"


@pytest.mark.parametrize(
    "use",
    [
        "from kubernetes.client import CoreV1Api",
        "import kubernetes; kubernetes.config.load_kube_config",
        "from kubernetes.config import *; load_kube_config",
    ],
)
def test_others_get_the_whole_client_when_they_ask_for_it(use: str) -> None:
    run(LEAN + use)


def test_whole_client_shares_what_was_loaded_before() -> None:
    code = LEAN + "lean.load_whole(); import kubernetes\n"
    assert run(code + "print(kubernetes.client.Configuration is client.Configuration)") == "True"


def test_unknown_attribute_is_still_an_error() -> None:
    code = LEAN + "import kubernetes\ntry:\n    kubernetes.nothing\nexcept AttributeError as e:\n    print(e)"
    assert "nothing" in run(code)


def test_dunder_lookups_load_nothing() -> None:
    code = LEAN + "import sys, kubernetes.config as c; hasattr(c, '__wrapped__')\n"
    assert run(code + "print('yaml' in sys.modules)") == "False"
