"""The listener of ``probe clock``: whoever calls it, the host that knows the nonce is served."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from allpull.probe import clock

pytestmark = pytest.mark.torch
NONCE = "0123456789abcdef" * 2


@pytest.fixture
def listener(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    monkeypatch.setattr(clock, "SAY_S", 0.2)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    with clock.listen("127.0.0.1") as made:
        made.settimeout(20)
        yield made


def call(listener: socket.socket, *, says: bytes = b"") -> socket.socket:
    caller = socket.create_connection(listener.getsockname(), timeout=20)
    caller.sendall(says)
    return caller


def reset(caller: socket.socket) -> None:
    """Close with a reset, as port scanners do, and hosts that have crashed."""
    caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    caller.close()


@pytest.mark.parametrize("says", [b"", NONCE[:5].encode(), b"GET / HTTP/1.0\r\n\r\n" + bytes(100)])
@pytest.mark.parametrize("end", [reset, socket.socket.close, lambda _: None], ids=["reset", "close", "silence"])
def test_a_stray_caller_does_not_keep_the_host_from_being_served(listener, says, end):
    stray = call(listener, says=says)
    end(stray)
    asker = threading.Thread(target=clock.ask, args=(listener.getsockname()[1], NONCE, 0.0))
    asker.start()
    rows = clock.serve(listener, NONCE)
    asker.join()
    stray.close()
    assert len(rows) == clock.PINGS_A_BURST
    assert all(row[0] <= row[1] <= row[2] <= row[3] for row in rows)  # one machine has one monotonic clock
