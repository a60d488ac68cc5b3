"""A tiny HTTP endpoint for Prometheus, from the standard library alone."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def serve_metrics(
    text: Callable[[], str], port: int = 9464, host: str = "127.0.0.1"
) -> ThreadingHTTPServer:
    """Answer GET /metrics with ``text()`` from a daemon thread; ``shutdown()`` stops it.

    Args:
        text: renders the metrics, see :func:`muninn.monitor.telemetry.render`; an exception in it is
            answered with status 500 and goes no further.
        port: 0 picks a free one, then in ``server.server_address``.
        host: local only by default: the endpoint has no authentication.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.partition("?")[0] != "/metrics":
                self.send_error(404, "only /metrics is here")
                return
            try:
                body = text().encode()
            except Exception as error:
                self.send_error(500, f"metrics could not be rendered: {type(error).__name__}")
                return
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Silent: a scrape every few seconds is no news."""

    server = ThreadingHTTPServer((host, port), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True, name="muninn-metrics").start()
    return server
