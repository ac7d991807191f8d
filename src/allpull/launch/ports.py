"""Ports on which the ranks of a job find each other: chosen, and checked."""

from __future__ import annotations

import secrets
import socket

from allpull.errors import BadInput

FIRST_PORT, PORTS = 20_000, 10_000  # below Linux's ephemeral ports, and two jobs of one host rarely share one


def check_port(port: int) -> None:
    """Make sure that we can listen on ``port`` here; 0 is any free one.

    Raises:
        BadInput: it is in use, or we may not open it.
    """
    if port == 0:
        return
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
            probe.listen()
        except OSError as error:
            raise BadInput(
                f"port {port}: {error.strerror}", hint="leave launch.port out, and a free one is chosen"
            ) from error


def choose_port(*, one_host: bool) -> int:
    """A port for the rendezvous: free now if all ranks are here, else random in a range that is rarely used."""
    if not one_host:
        return FIRST_PORT + secrets.randbelow(PORTS)
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def port_of(job_id: int) -> int:
    """The port of the rendezvous of Slurm job ``job_id``, the same on every host."""
    return FIRST_PORT + job_id % PORTS
