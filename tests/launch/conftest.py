"""Hosts to launch on: real OpenSSH servers on this machine that cannot see each other's files."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

SSHD = shutil.which("sshd") or "/usr/sbin/sshd"


@dataclass(frozen=True, kw_only=True)
class SshHosts:
    """Names that ssh knows, and the folder that puts an ``ssh`` with their configuration on the PATH."""

    names: tuple[str, ...]
    path: Path
    folder: Path
    servers: tuple[subprocess.Popen[bytes], ...]

    @property
    def environment(self) -> dict[str, str]:
        return {"PATH": f"{self.path}:{os.environ['PATH']}"}


@pytest.fixture(scope="session")
def ssh_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshHosts]:
    """Two servers on loopback ports, throw-away keys; each has a folder for scratch of its own and sees no run."""
    missing = [tool for tool in ("ssh", "ssh-keygen", "unshare", "mount", "rsync") if shutil.which(tool) is None]
    if missing or not Path(SSHD).exists():
        pytest.skip(f"not installed: {', '.join(missing) or 'openssh-server'}")
    if os.geteuid() != 0:
        pytest.skip("needs root, to give each server folders of its own")
    folder = Path(tempfile.mkdtemp(prefix="allpull-test-ssh-", dir="/var/tmp"))
    servers: list[subprocess.Popen[bytes]] = []
    try:
        yield _serve(folder, servers, hidden=tmp_path_factory.getbasetemp())
    finally:
        for server in servers:
            server.terminate()
            server.wait()
        for process in psutil.process_iter(["cmdline"]):  # what a failed test left running
            if any(str(folder) in word for word in process.info["cmdline"] or []):
                process.kill()
        shutil.rmtree(folder)


def _serve(folder: Path, servers: list[subprocess.Popen[bytes]], hidden: Path) -> SshHosts:
    Path("/run/sshd").mkdir(exist_ok=True)
    for key in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)], check=True)
    shutil.copy(folder / "user.pub", folder / "authorized")
    (folder / "scratch").mkdir()
    known, config = [], []
    names = ("node1", "node2")
    for name in names:
        port = _free_port()
        server_config = folder / f"{name}.sshd"
        server_config.write_text(
            f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/authorized\n"
            f"SetEnv TMPDIR={folder}/scratch\nStrictModes no\nUsePAM no\nPidFile none\n"
            "PasswordAuthentication no\nPermitRootLogin yes\n"
        )
        mounts = [f"mount -t tmpfs -o mode=1777 tmpfs {place}" for place in (hidden, folder / "scratch")]
        private = " && ".join([*mounts, f"exec {SSHD} -D -f {server_config}"])
        servers.append(subprocess.Popen(["unshare", "-m", "sh", "-c", private], stderr=subprocess.DEVNULL))
        known.append(f"[127.0.0.1]:{port} {(folder / 'host.pub').read_text()}")
        config.append(f"Host {name}\n  HostName 127.0.0.1\n  Port {port}\n  User root\n  IdentityFile {folder}/user\n")
    (folder / "known").write_text("".join(known))
    config.append("Host wrongkey\n  HostName 127.0.0.1\n  Port " + config[0].split("Port ")[1].split("\n")[0] + "\n")
    config.append(f"  User root\n  IdentityFile {folder}/host\nHost nobody\n  HostName 127.0.0.1\n  Port 9\n")
    config.append(f"Host *\n  UserKnownHostsFile {folder}/known\n  IdentitiesOnly yes\n")
    (folder / "config").write_text("".join(config))
    (folder / "bin").mkdir()
    wrapper = folder / "bin/ssh"
    wrapper.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/config "$@"\n')
    wrapper.chmod(0o755)
    deadline = time.monotonic() + 10
    for name in names:
        while subprocess.run([str(wrapper), "-o", "BatchMode=yes", name, "true"], check=False).returncode:
            assert time.monotonic() < deadline, "sshd did not come up"
            time.sleep(0.1)
    return SshHosts(names=names, path=folder / "bin", folder=folder, servers=tuple(servers))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
