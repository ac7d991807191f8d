"""The network interface with the route to another host. Standard library only; Linux, elsewhere None."""

from __future__ import annotations

import socket
import struct
from typing import Optional

SIOCGIFADDR = 0x8915  # linux/sockios.h
ADDRESS_AT = 20  # struct ifreq: 16 bytes of name, then struct sockaddr_in with the address at 4
IFREQ_BYTES = 256


def own_address(towards: str) -> str:
    """The IPv4 address from which this host would connect to ``towards``; no packet is sent.

    Raises:
        OSError: there is no route, or the name cannot be resolved here.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((towards, 9))
        address: str = probe.getsockname()[0]
    return address


def no_way(towards: str, error: OSError) -> str:
    """Why ``own_address`` failed, and what to do about it."""
    if isinstance(error, socket.gaierror):
        return f"cannot resolve {towards}, the address of the first host: with Slurm, set slurm.master to one that can"
    return f"no route to {towards}, the address of the first host: {error.strerror or error}"


def interface_of(address: str) -> Optional[str]:
    """The interface with IPv4 ``address``, or None.

    >>> interface_of("127.0.0.1") in ("lo", None)
    True
    """
    try:
        import fcntl  # noqa: PLC0415  not on Windows
    except ImportError:
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack(f"{IFREQ_BYTES}s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, request)
            except OSError:
                continue  # no IPv4 address on it, or not Linux
            if socket.inet_ntoa(answer[ADDRESS_AT : ADDRESS_AT + 4]) == address:
                return name
    return None
