"""Make and enter Linux namespaces: unshare(2), setns(2) and mount(2), which Python 3.11 lacks.

Everything that is made here lives as long as the processes inside it; then the kernel removes it.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MOUNT = 0x0002_0000  # CLONE_NEWNS
UTS = 0x0400_0000
USER = 0x1000_0000
NET = 0x4000_0000

_MS_BIND, _MS_REC, _MS_PRIVATE = 0x1000, 0x4000, 1 << 18
_OWN_NET = "/proc/self/ns/net"

_libc = ctypes.CDLL(None, use_errno=True)


def unshare(kinds: int) -> None:
    """Move this process, which must have only one thread, into new namespaces of ``kinds``.

    Raises:
        OSError: the kernel does not allow it.
    """
    _check(_libc.unshare(kinds), "unshare")


def enter_net(descriptor: int) -> None:
    """Move this process into the network namespace that ``descriptor`` is open on.

    Raises:
        OSError: it is no network namespace, or this process may not enter it.
    """
    _check(_libc.setns(descriptor, NET), "setns")


def bind(source: Path, target: Path) -> None:
    """Bind-mount ``source`` at ``target``, in this mount namespace only.

    Raises:
        OSError: the kernel does not allow it.
    """
    _check(_libc.mount(os.fsencode(source), os.fsencode(target), None, _MS_BIND, None), "mount")


def fresh_folder(target: Path) -> None:
    """Mount an empty folder in memory at ``target``, in this mount namespace only.

    Raises:
        OSError: the kernel does not allow it.
    """
    _check(_libc.mount(b"tmpfs", os.fsencode(target), b"tmpfs", 0, b"mode=1777"), "mount")


def enter_private_namespaces() -> None:
    """Move this process into its own network and mount namespaces, the outer ones of the virtual cluster.

    Root needs nothing more. Other users, and root without the capability, as in most containers, also become root of
    a user namespace; files that it creates still belong to the user.

    Raises:
        OSError: the kernel allows neither.
    """
    try:
        unshare(NET | MOUNT)
    except PermissionError:
        user, group = os.geteuid(), os.getegid()
        unshare(USER | NET | MOUNT)
        Path("/proc/self/setgroups").write_text("deny", encoding="ascii")  # user_namespaces(7): before gid_map
        Path("/proc/self/uid_map").write_text(f"0 {user} 1", encoding="ascii")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1", encoding="ascii")
    _check(_libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None), "mount")  # our mounts stay invisible outside


def new_net() -> int:
    """A new network namespace, as a descriptor that keeps it alive; this process stays in its own.

    Raises:
        OSError: the kernel does not allow it.
    """
    here = own_net()
    try:
        unshare(NET)
        made = own_net()
        enter_net(here)
    finally:
        os.close(here)
    return made


def own_net() -> int:
    """A descriptor open on the network namespace of this process."""
    return os.open(_OWN_NET, os.O_RDONLY | os.O_CLOEXEC)


@contextmanager
def inside(descriptor: int) -> Iterator[None]:
    """Run the block, and programs that it starts, in the network namespace of ``descriptor``."""
    here = own_net()
    try:
        enter_net(descriptor)
        try:
            yield
        finally:
            enter_net(here)
    finally:
        os.close(here)


def _check(result: int, call: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number) if number else errno.errorcode.get(number, '?')}")
