import base64
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_driver.cluster.kubeconfig import read_kubeconfig
from dra_driver.model.errors import SettingError

PEM = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
DATA = base64.b64encode(PEM.encode()).decode()


def config(cluster: dict[str, Any] | None = None, user: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "current-context": "test",
        "contexts": [
            {"name": "test", "context": {"cluster": "c", "user": "u"}},
            {"name": "other", "context": {"cluster": "c"}},
        ],
        "clusters": [{"name": "c", "cluster": {"server": "https://10.0.0.1:6443"} | (cluster or {})}],
        "users": [{"name": "u", "user": user or {}}],
    }


def write(path: Path, document: object) -> str:
    path.write_text(document if isinstance(document, str) else yaml.safe_dump(document))
    return str(path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "config"


def test_current_context_is_resolved(path: Path) -> None:
    found = read_kubeconfig(write(path, config(user={"token": "t"})))
    assert (found.server, found.token, found.fetched) == ("https://10.0.0.1:6443", "t", False)


def test_context_without_user_is_anonymous(path: Path) -> None:
    found = read_kubeconfig(write(path, config() | {"current-context": "other"}))
    assert found.token is None


def test_data_fields_are_decoded(path: Path) -> None:
    user = {"client-certificate-data": DATA, "client-key-data": DATA}
    found = read_kubeconfig(write(path, config({"certificate-authority-data": DATA}, user)))
    assert (found.ca_data, found.certificate_data, found.key_data) == (PEM, PEM, PEM)


def test_paths_are_relative_to_the_file(path: Path) -> None:
    (path.parent / "token").write_text("t")
    found = read_kubeconfig(write(path, config(user={"tokenFile": "token"})))
    assert found.token_file == str(path.parent / "token")


def test_cluster_options_are_read(path: Path) -> None:
    cluster = {"insecure-skip-tls-verify": True, "tls-server-name": "kube", "proxy-url": "http://proxy:3128"}
    found = read_kubeconfig(write(path, config(cluster)))
    assert (found.insecure, found.tls_server_name, found.proxy_url) == (True, "kube", "http://proxy:3128")


@pytest.mark.parametrize("field", ["exec", "auth-provider"])
def test_fetched_credentials_are_told_apart(path: Path, field: str) -> None:
    assert read_kubeconfig(write(path, config(user={field: {"command": "aws"}}))).fetched


def test_of_several_files_the_first_word_counts(tmp_path: Path) -> None:
    first = write(tmp_path / "first", {"current-context": "test", "contexts": config()["contexts"]})
    second = write(tmp_path / "second", config(user={"token": "t"}) | {"current-context": "other"})
    assert read_kubeconfig(f"{first}:{second}").token == "t"


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ("{", "not YAML"),
        ("[]", "found list"),
        ("", "found NoneType"),
        ({}, "current-context is not set; contexts: none"),
        (config() | {"current-context": None}, "contexts: test, other"),
        (config() | {"current-context": "prod"}, "no context named 'prod'; contexts: test, other"),
        (config() | {"clusters": []}, "no cluster named 'c'; clusters: none"),
        (config() | {"clusters": "c"}, "no cluster named 'c'; clusters: none"),
        (config() | {"users": [{"name": "x", "user": {}}]}, "no user named 'u'; users: x"),
        (config({"server": "10.0.0.1:6443"}), "server '10.0.0.1:6443' is not a URL"),
        (config({"server": None}), "server None is not a URL"),
        (config({"server": "https://h:port"}), "is not a URL"),
        (config({"certificate-authority": "gone.crt"}), "gone.crt cannot be read"),
        (config(user={"client-certificate": "/gone.crt"}), "client-certificate /gone.crt cannot be read"),
        (config(user={"client-key-data": "%%%"}), "client-key-data is not base64 of PEM text"),
        (config({"certificate-authority-data": "AAAA"}), "certificate-authority-data"),
    ],
)
def test_wrong_kubeconfig_is_named_with_what_is_wrong(path: Path, document: object, words: str) -> None:
    with pytest.raises(SettingError) as raised:
        read_kubeconfig(write(path, document))
    assert str(raised.value).startswith(f"kubeconfig {path}: ")
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_missing_kubeconfig_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=f"kubeconfig {tmp_path}/none: No such file or directory"):
        read_kubeconfig(f"{tmp_path}/none")


def test_directory_as_kubeconfig_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="Is a directory"):
        read_kubeconfig(str(tmp_path))
