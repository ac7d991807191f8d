"""Delay what hosts send, approximately, in a separate process, where the kernel has no netem.

A host's cable is then not a veth pair but two TAP devices with this process between them. A frame from the host is
forwarded after the latency, one to the host at once. The token buckets on the devices still set the rates. Frames keep
the kernel's segmentation offload, so one read moves up to 64 KiB. The process itself adds about a tenth of a
millisecond per frame, more on a busy machine, so a round trip takes a little longer than requested.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import struct
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

DEVICE = "/dev/net/tun"

_TUNSETIFF, _TUNSETOFFLOAD = 0x400454CA, 0x400454D0
_IFF_TAP, _IFF_NO_PI, _IFF_VNET_HDR = 0x0002, 0x1000, 0x4000
_TUN_F_CSUM, _TUN_F_TSO4 = 0x01, 0x02
_PR_SET_TIMERSLACK = 29
_FRAME_BYTES = 65536 + 256  # the largest segment with its headers
_AT_ONCE = 64  # frames read from one device before the next device is read


def tap(name: str) -> int:
    """A new TAP device called ``name`` in this process's network namespace; it lives as long as the descriptor.

    Raises:
        OSError: there is no TUN driver, or this process may not use it.
    """
    descriptor = os.open(DEVICE, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        flags = _IFF_TAP | _IFF_NO_PI | _IFF_VNET_HDR
        fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH22x", name.encode(), flags))
        fcntl.ioctl(descriptor, _TUNSETOFFLOAD, _TUN_F_CSUM | _TUN_F_TSO4)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def relay(cables: Sequence[tuple[int, int]], latency_s: float) -> None:
    """Forward frames over ``cables`` (descriptor at the host, at the switch) until the process is ended."""
    delayed = dict(cables)
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)  # wake up when due, not 50 µs later
    direct = {switch: host for host, switch in cables}
    waiting: deque[tuple[float, int, bytes]] = deque()  # due, to, frame: one latency for all keeps it in order
    everything = [*delayed, *direct]
    while True:
        pause = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        ready, _, _ = select.select(everything, [], [], pause)
        for source in ready:
            for frame in _frames(source):
                if source in direct:
                    _hand_on(direct[source], frame)
                else:
                    waiting.append((time.monotonic() + latency_s, delayed[source], frame))
        now = time.monotonic()
        while waiting and waiting[0][0] <= now:
            _, target, frame = waiting.popleft()
            _hand_on(target, frame)


def _frames(source: int) -> list[bytes]:
    frames: list[bytes] = []
    with suppress(OSError):  # nothing more to read, or the device is down
        while len(frames) < _AT_ONCE:
            frames.append(os.read(source, _FRAME_BYTES))
    return frames


def _hand_on(target: int, frame: bytes) -> None:
    with suppress(OSError):  # the device is down: the cable is cut, and the frame is lost
        os.write(target, frame)
