"""Serve a running job as a live page on a local address, to whoever knows the token in its path.

The server only hands out the last snapshot that `LivePage.update` was given: browsers cause no reading of records.
"""

from __future__ import annotations

import hmac
import json
import secrets
import socket
import threading
import time
from collections import deque
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any

from allpull.errors import BadInput
from allpull.report.colours import PHASES
from allpull.report.printable import inert_json
from allpull.schema.results import RankWatched, WatchResult
from allpull.units import counted

ADDRESS = "127.0.0.1"  # never another: what a job does is nobody else's business
MOST_RANKS = 64  # rows of the page: first those in trouble, then the latest
MOST_POINTS = 600  # of the curve of throughput
LEAST_LATE = 0.01  # of a step: below it, ranks are equally fast
MOST_CONNECTIONS = 64  # at once: any user of this host can open some, and each takes a thread
IDLE_S = 20.0  # a connection that says nothing for so long is closed
COLOURS = {**PHASES, "collective": PHASES["wait"]}
ASSETS = {
    "": ("live.html", "text/html; charset=utf-8"),
    "live.css": ("live.css", "text/css; charset=utf-8"),
    "live.js": ("live.js", "text/javascript; charset=utf-8"),
}
"""Path below the token → file and type."""

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class LivePage:
    """A live page of one job, served from its creation to `close`."""

    def __init__(self, port: int = 0) -> None:
        """Serve on ``port`` of the local address; 0: on any that is free.

        Raises:
            BadInput: the port is taken, or not ours to use.
        """
        self._token = secrets.token_urlsafe(24)
        self._history: deque[tuple[float, float]] = deque(maxlen=MOST_POINTS)
        self._began_s = time.monotonic()
        self._body = b"null"
        self._is_final, self._final_sent = False, threading.Event()
        try:
            self._server = _Server((ADDRESS, port), _Request)
        except OSError as error:
            raise BadInput(
                f"cannot listen on port {port} of {ADDRESS}: {error.strerror}", hint="leave --port out, or give another"
            ) from error
        self._server.page = self
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port that it is served on."""
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        """The address of the page; whoever has it can read the page from this machine."""
        return f"http://{ADDRESS}:{self.port}/{self._token}/"

    def update(self, result: WatchResult, *, is_final: bool = False) -> None:
        """Show ``result`` from now on; ``is_final``: the job has ended, and no other will follow."""
        if result.samples_per_s is not None and not is_final:
            self._history.append((round(time.monotonic() - self._began_s, 3), result.samples_per_s))
        body = inert_json(json.dumps(_shown(result, list(self._history), is_final=is_final))).encode("utf-8")
        self._body, self._is_final = body, is_final

    def delivered(self, body: bytes) -> None:
        """``body`` has been sent to a browser."""
        if self._is_final and body is self._body:
            self._final_sent.set()

    def close(self, *, grace_s: float = 0.0) -> None:
        """End the server; wait up to ``grace_s`` for a browser to fetch the final snapshot first."""
        if self._is_final and grace_s:
            self._final_sent.wait(grace_s)
        self._server.shutdown()
        self._server.server_close()

    def response(self, path: str, host: str) -> tuple[HTTPStatus, str, bytes]:
        """Status, content type and body for ``path``, requested from ``host``, the header of that name.

        A page of another origin that resolves its own name to our address sends that name (DNS rebinding).
        """
        if host not in {f"{name}:{self.port}" for name in (ADDRESS, "localhost")}:
            return HTTPStatus.MISDIRECTED_REQUEST, "text/plain", b"this page is local\n"
        token, _, name = path.removeprefix("/").partition("/")
        if not hmac.compare_digest(token.encode(), self._token.encode()) or not path.startswith("/"):
            return HTTPStatus.NOT_FOUND, "text/plain", b"no such page: use the address that allpull watch printed\n"
        if name == "snapshot.json":
            return HTTPStatus.OK, "application/json", self._body
        if name not in ASSETS:
            return HTTPStatus.NOT_FOUND, "text/plain", b"no such page\n"
        file, kind = ASSETS[name]
        return HTTPStatus.OK, kind, files("allpull.report.html").joinpath(file).read_bytes()


class _Server(ThreadingHTTPServer):
    """A thread for each connection, none of which outlives the process."""

    daemon_threads = True
    block_on_close = False
    allow_reuse_address = False  # else another program of this user could have taken the port meanwhile
    request_queue_size = MOST_CONNECTIONS
    page: LivePage

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._open: deque[Any] = deque()
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve another connection; the oldest of too many ends, so that whoever opens many locks nobody out."""
        self._open.append(request)
        if len(self._open) > MOST_CONNECTIONS:
            with suppress(OSError):  # it has just ended by itself
                self._open.popleft().shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """End a connection."""
        with suppress(ValueError):
            self._open.remove(request)
        super().shutdown_request(request)


class _Request(BaseHTTPRequestHandler):
    """One connection. Nothing of a request reaches a file name, a log or a page."""

    protocol_version = "HTTP/1.1"
    timeout = IDLE_S
    server_version, sys_version = "allpull", ""

    def do_GET(self) -> None:
        """Answer a request."""
        server = self.server
        assert isinstance(server, _Server)
        hosts = self.headers.get_all("Host") or []
        status, kind, body = server.page.response(self.path, hosts[0] if len(hosts) == 1 else "")
        self.send_response(status)
        for name, value in {**HEADERS, "Content-Type": kind, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()
        server.page.delivered(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the standard library's name
        """Say nothing: the terminal is the user's."""


def _shown(result: WatchResult, history: list[tuple[float, float]], *, is_final: bool) -> dict[str, Any]:
    """What the page draws: ``result``, of many ranks the most important, and the throughput since the server began."""
    named = {trouble.rank for trouble in result.troubles}
    ordered = sorted(result.ranks, key=lambda rank: (rank.rank not in named, -(rank.late_s or 0.0), rank.rank))
    shown = sorted(ordered[:MOST_RANKS], key=lambda rank: rank.rank)
    hidden = len(ordered) - len(shown)
    return {
        "snapshot": result.model_copy(update={"ranks": shown}).model_dump(mode="json", by_alias=True),
        "late": late_rank(result.ranks),
        "hidden": f"and {counted(hidden, 'more rank')}, which allpull watch --json lists" if hidden else "",
        "history": history,
        "colours": COLOURS,
        "is_final": is_final,
    }


def late_rank(ranks: list[RankWatched]) -> int | None:
    """The rank that the others wait for longest, if it is late by a hundredth of a step; else None."""
    known = [rank for rank in ranks if rank.late_s is not None and rank.step_s]
    worst = max(known, key=lambda rank: rank.late_s or 0.0, default=None)
    if worst is None or len(known) < 2 or (worst.late_s or 0.0) < LEAST_LATE * (worst.step_s or 0.0):
        return None
    return worst.rank
