"""The store in which ranks meet, on one interface only. torch's own would listen on every interface of the host."""

from __future__ import annotations

import socket

from torch._C._distributed_c10d import TCPStore


def listen(address: str, port: int) -> socket.socket:
    """A listening socket on the interface of ``address`` alone; port 0 is any free one.

    Raises:
        OSError: the port is in use, or the address is not ours.
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
    """The store of a job without an agent; rank 0 keeps it for as long as it lives.

    Raises:
        OSError: as ``listen``.
    """
    descriptor = listen(address, port).detach()  # the store owns the socket now
    return TCPStore(address, port, is_master=True, wait_for_workers=False, master_listen_fd=descriptor)
