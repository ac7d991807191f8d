"""The TCP store of a process group, on one interface only: torch's own would listen on every interface of the host.

``python -m allpull.observe.store ADDRESS PORT`` serves it for a rank that cannot, for as long as that rank lives.
"""

from __future__ import annotations

import signal
import socket
import sys
from datetime import timedelta

from torch._C._distributed_c10d import TCPStore

from allpull.observe.process import end_with_parent

PATIENCE = timedelta(seconds=120)
"""How long to wait in a store for another host, which may still be importing torch."""


def listen(address: str, port: int) -> socket.socket:
    """A listening socket on the interface of ``address`` alone; port 0 is any free one.

    Raises:
        OSError: the port is in use, or the address does not belong to this host.
    """
    family, kind, _, _, where = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
        listener.listen(2048)
    except OSError:
        listener.close()
        raise
    return listener


def serve(address: str, port: int) -> TCPStore:
    """The store of a job without an agent; it lives as long as rank 0 keeps a reference to it.

    Raises:
        OSError: as ``listen``.
    """
    return serve_on(listen(address, port), address)


def serve_on(listener: socket.socket, address: str) -> TCPStore:
    """A store that answers on ``listener``, which it takes over; it ends with the object."""
    port, descriptor = listener.getsockname()[1], listener.detach()
    return TCPStore(
        address,
        port,
        is_master=True,
        timeout=PATIENCE,
        wait_for_workers=False,
        master_listen_fd=descriptor,
    )


def call(address: str, port: int) -> TCPStore:
    """A connection to the store at ``address`` and ``port``, which may still be starting.

    Raises:
        DistNetworkError: no answer within ``PATIENCE``.
    """
    return TCPStore(address, port, timeout=PATIENCE, wait_for_workers=False)


if __name__ == "__main__":
    end_with_parent(signal.SIGTERM)
    store = serve(sys.argv[1], int(sys.argv[2]))
    while True:
        signal.pause()
