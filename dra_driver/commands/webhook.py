"""``dra-driver webhook``: serves the API server's questions about claims and templates."""

import argparse
import logging
from functools import partial
from pathlib import Path
from typing import Final

from dra_driver import settings
from dra_driver.model.errors import DriverError, SettingError
from dra_driver.settings import LoggingFormat
from dra_driver.signals import stop_on_signals

log = logging.getLogger(__name__)

_DESCRIPTION = """\
Serve a validating admission webhook over HTTPS: claims and templates with a config of
gpu.nvidia.com that the driver would refuse are refused when they are made, in the same words.
Configs of other drivers are not looked at. It needs no rights in the cluster and no GPU.

Paths: /validate-resource-claim-parameters, /healthz, /readyz."""

_EPILOG = """\
examples:
  dra-driver webhook --tls-cert-file /tls/tls.crt --tls-private-key-file /tls/tls.key \\
      --feature-gates TimeSlicingSettings=true

Give it the driver's own feature gates. A certificate that changes is taken up within seconds.
Exit codes: 0 stopped by a signal, 1 failed, 2 a setting is wrong."""

_SETTINGS: Final = frozenset({"gates", "logging_format", "verbosity"})
_LOOK_SECONDS: Final = 1.0
"""Between two looks at the certificate; also how long a signal may go unnoticed that another thread was given."""
_MAX_PORT: Final = 65535


def configure(parser: argparse.ArgumentParser) -> None:
    """Add certificate, port, gates and logging."""
    parser.description, parser.epilog = _DESCRIPTION, _EPILOG
    parser.add_argument(
        "--tls-cert-file", required=True, metavar="FILE", type=Path, help="certificate, or chain, of the server; PEM"
    )
    parser.add_argument("--tls-private-key-file", required=True, metavar="FILE", type=Path, help="its key; PEM")
    parser.add_argument("--port", metavar="PORT", default="443", help="port to serve on; default: 443")
    settings.add_options(parser, only=_SETTINGS)


def run(options: argparse.Namespace) -> int:
    """Serve until a signal ends it. Raises SettingError, and DriverError when the server ends by itself."""
    read = settings.load(options, only=_SETTINGS)
    port = _port(options.port)
    from dra_driver.observe import logs  # the whole webhook; a wrong setting or --help must not wait for it
    from dra_driver.webhook.certificates import Certificate
    from dra_driver.webhook.http import application
    from dra_driver.webhook.judgement import judge
    from dra_driver.webhook.server import Server

    logs.configure(read.verbosity, read.logging_format is LoggingFormat.JSON)
    certificate = Certificate(options.tls_cert_file, options.tls_private_key_file)
    stop = stop_on_signals()
    app = application(partial(judge, gates=read.gates), lambda: certificate.trouble)
    server = Server(app, port, certificate.context)
    try:
        server.start()
        log.info("feature gates: %s", read.gates)
        while not stop.wait(_LOOK_SECONDS):
            if not server.alive:
                raise DriverError("the webhook's server has ended; see the log")
            certificate.refresh()
    finally:
        server.stop()
    return 0


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > _MAX_PORT:
        raise SettingError(
            f'invalid value for --port: "{text[:20]}" (want a number from 0 to {_MAX_PORT}; 0 picks one)'
        )
    return int(text)
