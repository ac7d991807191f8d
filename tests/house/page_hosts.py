"""Hosts ``login``, ``node01`` and ``node02``, as ``allpull rehearse`` makes them, for commands that a page shows.

``python page_hosts.py HOME``. Each host has a network, a name, and an sshd on port 22; they share HOME as the user's
home directory. When they are ready, it writes one line: by host the process that holds it. It ends with these.
"""

import json
import os
import pwd
import shutil
import socket
import sys
from pathlib import Path

from allpull.rehearse.host import network
from allpull.rehearse.host.namespaces import UTS, bind, enter_net, enter_private_namespaces, new_net, unshare

HOSTS = ("login", "node01", "node02")
LINK_BITS_PER_S = 10**9
SSHD = shutil.which("sshd") or "/usr/sbin/sshd"


def main() -> None:
    """Make the hosts, and wait for the end."""
    home = Path(sys.argv[1])
    enter_private_namespaces()
    nets = [new_net() for _ in HOSTS]
    network.run(network.plan(network.Topology(links_bits_per_s=(LINK_BITS_PER_S,) * len(HOSTS))), nets)
    known = ["127.0.0.1 localhost\n"]
    for index, name in enumerate(HOSTS):  # both forms, as torch's store looks for either
        known += [f"{network.address(index)} {name}\n", f"::ffff:{network.address(index)} {name}\n"]
    (home / "hosts").write_text("".join(known), encoding="utf-8")
    bind(home / "hosts", Path("/etc/hosts"))
    user = pwd.getpwuid(os.getuid())
    (home / "passwd").write_text(f"{user.pw_name}:x:{user.pw_uid}:{user.pw_gid}::{home}:/bin/bash\n"
                                 "sshd:x:65533:65534::/run/sshd:/usr/sbin/nologin\n", encoding="utf-8")  # fmt: skip
    bind(home / "passwd", Path("/etc/passwd"))
    holders = {}
    for name, net in zip(HOSTS, nets, strict=True):
        if (pid := os.fork()) == 0:
            enter_net(net)
            unshare(UTS)
            socket.sethostname(name)
            has_sshd = Path(SSHD).exists() and (home / "sshd.conf").exists()
            command = [SSHD, "-D", "-f", str(home / "sshd.conf")] if has_sshd else ["sleep", "infinity"]
            os.execvp(command[0], command)
        holders[name] = pid
    sys.stdout.write(f"{json.dumps(holders)}\n")
    sys.stdout.flush()
    for _ in holders:
        os.wait()


if __name__ == "__main__":
    main()
