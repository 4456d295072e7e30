"""`bipars watch`: the report as a page that follows its runs, for this machine alone.

The standard library's server is enough: two addresses, one reader, no state. It listens on the loopback interface,
answers only requests whose Host is that very address (so that no foreign name can be pointed at it), and refuses what a
page of another origin asks for.
"""

import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from bipars.errors import BiparsError, UsageError, printable
from bipars.report.content import content
from bipars.report.page import page_policy, render_content, render_page
from bipars.results.panels import collect
from bipars.runs.directory import RunDirectory, find_runs
from bipars.runs.lock import held

ADDRESS = "127.0.0.1"
SOCKET_SECONDS = 10.0
"""What a reader gets to send its request, and to take what it is sent."""
MOST_THREADS = 200
"""Two for each reader. Who comes when there are more is sent away: files could no longer be opened."""
NAMES = ("127.0.0.1", "localhost")
ANSWERS: dict[str, Callable[..., str]] = {"/": partial(render_page, live=True), "/content": render_content}


class Source:
    """The two answers, made anew only when a file of the runs has changed."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._lock = threading.Lock()
        self._made: tuple[Any, dict[str, str]] | None = None

    def get(self, path: str) -> str | None:
        if path not in ANSWERS:
            return None
        with self._lock:
            stamp = self._stamp()
            if self._made is None or self._made[0] != stamp:
                self._made = stamp, {}
            answers = self._made[1]
            if path not in answers:
                collection = collect(self.directory)
                answers[path] = ANSWERS[path](collection, content(collection))
            return answers[path]

    def _stamp(self) -> Any:
        return [_stamp(run) for run in find_runs(self.directory)]


def _stamp(run: RunDirectory) -> Any:
    found: list[Any] = [run.path, held(run.lock_file)]
    for file in (run.config_file, run.metrics_file, run.result_file, run.error_file):
        try:
            about = file.stat()
            found.append((about.st_mtime_ns, about.st_size))
        except OSError:  # not there, or not for us
            found.append(None)
    return found


class Handler(BaseHTTPRequestHandler):
    server_version, sys_version = "bipars", ""
    timeout = SOCKET_SECONDS
    source: Source

    def setup(self) -> None:
        super().setup()
        # The socket's timeout begins anew with every letter that comes.
        self.patience = threading.Timer(self.timeout, self._hang_up)
        self.patience.daemon = True
        self.patience.start()

    def _hang_up(self) -> None:
        with suppress(OSError):  # the reader has gone
            self.connection.shutdown(socket.SHUT_RDWR)

    def finish(self) -> None:
        self.patience.cancel()
        super().finish()

    def do_GET(self) -> None:
        self.patience.cancel()  # it has asked; what it asked for may take longer to make
        port = self.server.server_address[1]  # type: ignore[index]
        if self.headers.get("Host") not in {f"{name}:{port}" for name in NAMES}:
            return self._answer(HTTPStatus.MISDIRECTED_REQUEST, "this page answers on its own address only\n")
        if self.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
            return self._answer(HTTPStatus.FORBIDDEN, "not for pages of another origin\n")
        try:
            text = self.source.get(self.path)
        except BiparsError as error:
            return self._answer(HTTPStatus.SERVICE_UNAVAILABLE, f"{error}\n")
        except OSError as error:  # such as of runs that are moved or deleted while they are read
            said = printable(f"{error.filename} cannot be read: {error.strerror}")
            return self._answer(HTTPStatus.SERVICE_UNAVAILABLE, f"{said}\n")
        if text is None:
            return self._answer(HTTPStatus.NOT_FOUND, "nothing here\n")
        self._answer(HTTPStatus.OK, text, "text/html")

    def _answer(self, status: HTTPStatus, text: str, kind: str = "text/plain") -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Security-Policy", page_policy(live=True))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("X-Frame-Options", "DENY")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet: a line per refresh would bury the address."""


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # with the usual 5, who comes in a crowd waits for seconds

    def verify_request(self, request: Any, client_address: Any) -> bool:
        return threading.active_count() < MOST_THREADS

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A reader that leaves, or does not take its answer, is no error of ours."""
        if not isinstance(sys.exception(), (ConnectionError, TimeoutError)):
            super().handle_error(request, client_address)


def make_server(directory: Path, port: int) -> ThreadingHTTPServer:
    """Listening already; port 0 takes any that is free."""
    collect(directory)  # what cannot be shown is an error now, not in the browser
    handler = type("RunHandler", (Handler,), {"source": Source(directory)})
    try:
        return Server((ADDRESS, port), handler)
    except (OSError, OverflowError) as error:
        raise UsageError(f"--port is {port}: {error}. Use another, or 0 for any that is free") from error


def watch(directory: Path, port: int) -> int:
    with make_server(directory, port) as server:
        print(f"http://{ADDRESS}:{server.server_address[1]}/ follows {directory}; Ctrl-C ends it", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()
    return 0
