"""A web server that models come from, on the machine beside the nodes. It can be set to fail."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any

from e2e.machine_server import MachineServer


class WebServer(MachineServer):
    """Serves the folders below `models` as /ANYTHING/NAME/..., so that a model has as many sources as one likes."""

    def __init__(self, address: str, models: Path) -> None:
        super().__init__(address, partial(_Handler, directory=str(models)))
        self.out_of_order = False

    def source(self, edition: str, model: str) -> dict[str, Any]:
        """Of a ModelPool's model."""
        return {"http": {"url": f"{self.url}/{edition}/{model}"}}


@contextmanager
def serving(address: str, models: Path) -> Iterator[WebServer]:
    """For the time of a `with`."""
    with WebServer(address, models) as server:
        thread = threading.Thread(target=server.serve_forever, name="web", daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


class _Handler(SimpleHTTPRequestHandler):
    server: WebServer

    def translate_path(self, path: str) -> str:
        return super().translate_path("/" + path.lstrip("/").partition("/")[2])

    def send_head(self) -> Any:
        if self.server.out_of_order:
            self.send_error(HTTPStatus.SERVICE_UNAVAILABLE)
            return None
        return super().send_head()

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing: thousands of lines would bury what a campaign says."""
