import logging
import os

import pytest

from dra_driver.model.errors import SettingError
from dra_driver.webhook.certificates import Certificate
from hack.cluster.certificates import Authority


def shown(webhook):
    """The certificate that a new connection is shown."""
    client = webhook.client()
    client.ask()
    return client.certificate


def test_new_certificate_is_shown_to_new_connections_while_old_ones_go_on(serve, files):
    webhook = serve()
    standing = webhook.client()
    standing.ask()
    second = files.renew()

    assert shown(webhook) == files.first
    webhook.certificate.refresh()

    assert shown(webhook) == second
    socket = standing.connection.sock
    assert standing.ask()[0] == 200
    assert standing.connection.sock is socket
    assert standing.certificate == files.first


def test_certificate_of_another_authority_is_taken_too(files):
    certificate = Certificate(files.certificate, files.key)
    files.renew(Authority("another"))

    certificate.refresh()

    assert certificate.trouble == ""


def broken(files, how):
    match how:
        case "no pem":
            files.certificate.write_text("nothing")
        case "empty":
            files.key.write_text("")
        case "another's key":
            key = files.key.read_text()
            files.renew()
            files.key.write_text(key)
        case "missing":
            files.certificate.unlink()
        case "directory":
            files.key.unlink()
            files.key.mkdir()


BROKEN = ["no pem", "empty", "another's key", "missing", "directory"]


@pytest.mark.parametrize("how", BROKEN)
def test_broken_new_certificate_is_told_once_and_the_old_one_serves_on(serve, files, how, caplog):
    webhook = serve()
    broken(files, how)

    for _ in range(3):
        webhook.certificate.refresh()

    assert shown(webhook) == files.first
    (told,) = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert str(files.certificate) in told
    assert "the one before it still is" in told
    assert told in webhook.client().ask("GET", "/readyz")[1]


@pytest.mark.parametrize("how", BROKEN)
def test_good_certificate_after_a_broken_one_is_taken(serve, files, how):
    webhook = serve()
    broken(files, how)
    webhook.certificate.refresh()
    if files.key.is_dir():
        files.key.rmdir()
    third = files.renew()

    webhook.certificate.refresh()

    assert shown(webhook) == third
    assert webhook.client().ask("GET", "/readyz") == (200, "ok\n")


def test_half_written_pair_is_taken_when_its_other_half_is_there(serve, files, authority):
    webhook = serve()
    pair = authority.server("webhook", ["localhost"], ["127.0.0.1"])
    files.certificate.write_text(pair.certificate)
    webhook.certificate.refresh()
    assert webhook.certificate.trouble

    files.key.write_text(pair.key)
    webhook.certificate.refresh()

    assert shown(webhook) != files.first
    assert webhook.certificate.trouble == ""


def test_directory_that_is_swapped_as_the_kubelet_does_is_followed(tmp_path, files):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        files.renew()
        files.certificate.rename(tmp_path / name / "tls.crt")
        files.key.rename(tmp_path / name / "tls.key")
    data = tmp_path / "..data"
    data.symlink_to("one")
    certificate = Certificate(data / "tls.crt", data / "tls.key")
    before = certificate._current
    (tmp_path / "next").symlink_to("two")
    os.replace(tmp_path / "next", data)

    certificate.refresh()

    assert certificate._current is not before


def test_certificate_that_stays_is_not_loaded_again(files):
    certificate = Certificate(files.certificate, files.key)
    before = certificate._current

    certificate.refresh()

    assert certificate._current is before


@pytest.mark.parametrize("how", BROKEN)
def test_broken_certificate_ends_the_start_with_what_is_wanted(files, how):
    broken(files, how)

    with pytest.raises(SettingError, match=r"--tls-cert-file .*tls.crt cannot be used: .*; want a certificate"):
        Certificate(files.certificate, files.key)


def test_key_with_a_passphrase_is_refused_and_nobody_is_asked_for_it(files):
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key(files.key.read_bytes(), None)
    secret = serialization.BestAvailableEncryption(b"secret")
    files.key.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, secret))

    with pytest.raises(SettingError, match="the key has a passphrase"):
        Certificate(files.certificate, files.key)


def test_fingerprint_is_the_one_that_openssl_shows(files, caplog):
    import hashlib

    caplog.set_level(logging.INFO)
    Certificate(files.certificate, files.key)

    expected = hashlib.sha256(files.first).hexdigest().upper()
    assert ":".join(expected[at : at + 2] for at in range(0, 16, 2)) in caplog.text
