"""HTTPS around the application: the port, the thread it is served in, and its end."""

import asyncio
import logging
import socket
import ssl
import threading
from typing import Final

import uvicorn
from starlette.types import ASGIApp

from dra_driver.model.errors import DriverError, SettingError

log = logging.getLogger(__name__)

_START_SECONDS: Final = 30.0
_GRACE_SECONDS: Final = 8
"""For requests that are being answered when the end comes."""
_IDLE_SECONDS: Final = 60
"""The API server keeps connections; a new one is a handshake more."""


class Server:
    """Serves an application until ``stop``."""

    def __init__(self, app: ASGIApp, port: int, context: ssl.SSLContext) -> None:
        """Bind at once, on all addresses; port 0 picks one. Raises SettingError when the port cannot be had."""
        self._listener = _listen(port)
        self.port = int(self._listener.getsockname()[1])
        config = uvicorn.Config(
            app,
            log_config=None,
            log_level="warning",
            access_log=False,
            lifespan="off",
            loop="asyncio",
            http="h11",
            ws="none",
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=_IDLE_SECONDS,
            timeout_graceful_shutdown=_GRACE_SECONDS,
        )
        config.load()
        # Not by uvicorn's own settings, which name files to be read once.
        config.ssl = context
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._serve, name="webhook", daemon=True)
        self._ready = threading.Event()

    @property
    def alive(self) -> bool:
        """Whether it serves."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Serve. Raises DriverError when that does not come about."""
        self._thread.start()
        self._ready.wait(_START_SECONDS)
        if not self._server.started:
            raise DriverError(f"the webhook did not start to serve on port {self.port} within {_START_SECONDS:g} s")
        log.info("serving HTTPS on port %d", self.port)

    def stop(self) -> None:
        """Take no more connections, answer what is asked already, end. Idempotent."""
        self._server.should_exit = True
        if self._thread.ident is not None:
            self._thread.join(_GRACE_SECONDS + 2)
        self._listener.close()

    def _serve(self) -> None:
        async def serve() -> None:
            serving = asyncio.ensure_future(self._server.serve(sockets=[self._listener]))
            while not self._server.started and not serving.done():
                await asyncio.sleep(0.005)
            self._ready.set()
            await serving

        try:
            asyncio.run(serve())
        finally:
            self._ready.set()


def _listen(port: int) -> socket.socket:
    try:
        if socket.has_dualstack_ipv6():
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
        return socket.create_server(("", port))
    except OSError as error:
        raise SettingError(f"--port {port} cannot be used: {error.strerror or error}; want a free port") from error
