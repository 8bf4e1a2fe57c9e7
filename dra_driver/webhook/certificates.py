"""The server's certificate: read from files that change under it, as cert-manager and the kubelet change them."""

import hashlib
import logging
import ssl
from pathlib import Path
from typing import Final

from dra_driver.model.errors import SettingError
from dra_driver.model.texts import in_one_line

log = logging.getLogger(__name__)

_SHOWN: Final = 16


class BadCertificate(Exception):
    """The files hold no certificate with its key."""


class Certificate:
    """The newest good certificate of two files.

    A handshake takes the one that is current then; connections that stand are left alone.
    """

    def __init__(self, certificate: Path, key: Path) -> None:
        """Read it. Raises SettingError when that cannot be done."""
        self._certificate, self._key = certificate, key
        self._content = b""
        self.trouble = ""
        try:
            self._content = self._read()
            self._current = self._load()
        except BadCertificate as error:
            raise SettingError(
                f"--tls-cert-file {certificate} cannot be used: {error}; want a certificate, or a chain with "
                "the server's own first, and its key without a passphrase, both PEM"
            ) from error
        # A context of its own: one that is being changed has a certificate and a key that do not fit for a moment.
        self.context = self._load()
        self.context.sni_callback = self._choose
        log.info("certificate %s from %s", self._name(), certificate)

    def refresh(self) -> None:
        """Look at the files, and use what they hold if it is good. Tells once what is wrong with them."""
        try:
            content = self._read()
            if content == self._content and not self.trouble:
                return
            self._current = self._load()
        except BadCertificate as error:
            trouble = f"the certificate in {self._certificate} cannot be used, the one before it still is: {error}"
            if trouble != self.trouble:
                log.error("%s", trouble)
            self.trouble = trouble
            return
        self._content, self.trouble = content, ""
        log.info("certificate changed: %s from %s", self._name(), self._certificate)

    def _choose(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        """OpenSSL asks for each handshake, also when the client names no server."""
        connection.context = self._current

    def _read(self) -> bytes:
        try:
            return self._certificate.read_bytes() + b"\0" + self._key.read_bytes()
        except OSError as error:
            raise BadCertificate(f"{error.filename} cannot be read: {error.strerror}") from error

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self._certificate, self._key, password=_no_passphrase)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            reason = in_one_line(str(error))
            raise BadCertificate(f"it and {self._key} hold no certificate and key of each other ({reason})") from error
        return context

    def _name(self) -> str:
        """The beginning of its SHA-256 fingerprint, as ``openssl x509 -fingerprint -sha256`` shows it."""
        begin, end = b"-----BEGIN CERTIFICATE-----", b"-----END CERTIFICATE-----"
        first = begin + self._content.partition(begin)[2].partition(end)[0] + end
        digest = hashlib.sha256(ssl.PEM_cert_to_DER_cert(first.decode("ascii", "replace"))).hexdigest()
        return ":".join(digest[at : at + 2] for at in range(0, _SHOWN, 2)).upper()


def _no_passphrase() -> str:
    """OpenSSL would ask the terminal for it."""
    raise ValueError("the key has a passphrase")
