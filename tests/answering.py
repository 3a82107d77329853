"""A server that gives every GET the same answer, and a client without one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from sglang_adaptive.client import Client


@contextmanager
def answering(status: int, body: bytes) -> Iterator[str]:
    """Serve inside the ``with``; yield the address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        serving.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            serving.join()


class Told(Client):
    """A client whose server gives the same *answer* to everything."""

    def __init__(self, answer: Any) -> None:
        super().__init__("127.0.0.1", 9)
        self.answer = answer

    def get(self, path: str) -> Any:
        return self.answer
