"""A Kubernetes API server on loopback, for a driver, its kubelet and tests; runs in one thread of its own.

Plain HTTP without credentials: it listens on 127.0.0.1 only, and holds nothing but simulated objects.
"""

import asyncio
import json
import socket
import threading
from pathlib import Path
from types import TracebackType

import uvicorn

from dra_driver.model.errors import DriverError
from dra_driver.simulator.faults import Faults
from dra_driver.simulator.http_api import HttpApi, Seen
from dra_driver.simulator.store import Store

START_SECONDS = 10.0
STOP_SECONDS = 5.0
GIT_VERSION = "v1.36.3"


class ApiServer:
    """Serves ``store`` until stopped; a stopped server can be started again on the same port.

    store: the objects, also to be used directly. faults: trouble on order. seen: the requests that came in.
    """

    def __init__(self, store: Store | None = None, *, port: int = 0, git_version: str = GIT_VERSION) -> None:
        self.store = store or Store()
        self.faults = Faults()
        self._port = port
        self._git_version = git_version
        self._api = HttpApi(self.store, self.faults, git_version)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """Base URL; only known once started."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def seen(self) -> list[Seen]:
        """The latest requests, oldest first."""
        return list(self._api.seen)

    def forget_seen(self) -> None:
        """Start counting requests anew."""
        self._api.seen.clear()

    def start(self) -> "ApiServer":
        """Bind and serve. Raises DriverError when the port is taken or the server does not come up."""
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", self._port))
        except OSError as error:
            listener.close()
            raise DriverError(f"the simulated API server cannot listen on 127.0.0.1:{self._port}: {error}") from error
        self._port = listener.getsockname()[1]
        seen = self._api.seen
        self._api = HttpApi(self.store, self.faults, self._git_version)
        self._api.seen = seen
        config = uvicorn.Config(
            self._api,
            log_config=None,
            log_level="critical",
            access_log=False,
            lifespan="off",
            loop="asyncio",
            http="h11",
            ws="none",
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)
        ready = threading.Event()
        self._thread = threading.Thread(
            target=self._serve, args=(self._server, listener, ready), name="api-server", daemon=True
        )
        self._thread.start()
        if not ready.wait(START_SECONDS):
            raise DriverError(f"the simulated API server did not start within {START_SECONDS:g} s")
        return self

    def stop(self) -> None:
        """End watches, close connections and the port. Idempotent."""
        loop, server, thread = self._loop, self._server, self._thread
        if loop is None or server is None or thread is None:
            return
        self._loop = self._server = self._thread = None
        server.should_exit = True
        loop.call_soon_threadsafe(self._api.close)
        thread.join(STOP_SECONDS)

    def kubeconfig(self, path: Path) -> Path:
        """Write a kubeconfig for this server (as JSON, which is YAML too) and return its path."""
        name = "simulated"
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": name, "cluster": {"server": self.url}}],
            "users": [{"name": name, "user": {}}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
            "current-context": name,
        }
        path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        return path

    def __enter__(self) -> "ApiServer":
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _serve(self, server: uvicorn.Server, listener: socket.socket, ready: threading.Event) -> None:
        async def serve() -> None:
            self._loop = asyncio.get_running_loop()
            serving = asyncio.ensure_future(server.serve(sockets=[listener]))
            while not server.started and not serving.done():
                await asyncio.sleep(0.005)
            ready.set()
            await serving

        with listener:
            asyncio.run(serve())
