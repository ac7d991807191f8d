"""Get a real Apptainer without installing it: Debian's, unpacked into a folder and entered as an ordinary user.

    python tools/apptainer.py FOLDER

``FOLDER/bin/apptainer`` is then the program, for images that are folders, and for files with ``--unsquash`` or FUSE.
``FOLDER/base`` is a small Debian with Python to build images from (``Bootstrap: localimage``) where no registry can
be reached. It takes apt with a mirror and Debian's keyring, and user namespaces (also root's own; no CAP_SYS_ADMIN).
Nothing outside of FOLDER is changed; what stands in it already is kept.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

MIRROR = "http://deb.debian.org/debian"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")
RUNTIME = ("sid", ["base-files", "dash", "coreutils", "util-linux", "mount", "apptainer", "squashfs-tools"])
BASE = ("bookworm", ["base-files", "dash", "coreutils", "libc-bin", "libstdc++6", "python3", "python3-pip"])
"""Suite and packages: Apptainer is in Debian's unstable only; the base is that of ``containers/allpull.def``."""

USERS = "root:x:0:0::/root:/bin/sh\nuser:x:1000:1000::{home}:/bin/sh"
GROUPS = "root:x:0:\nuser:x:1000:"
ENTER = """\
#!/bin/sh
# Apptainer as root wants capabilities that root of a container or small machine may lack; as a user it needs none.
# Made by tools/apptainer.py: everything of this machine but /usr, /etc and /var is seen at its own place.
exec unshare --user --map-root-user --mount --propagation private sh -c '
set -eu
tree=$1 here=$2
shift 2
mount --bind "$tree" /mnt
for place in /*; do
  case "$place" in
    /usr|/etc|/var|/mnt|/lost+found) ;;
    *) [ -L "$place" ] || [ ! -d "$place" ] || { mkdir -p "/mnt$place"; mount --rbind "$place" "/mnt$place"; } ;;
  esac
done
mkdir -p /mnt/var/tmp /mnt/mnt
mount --rbind /var/tmp /mnt/var/tmp
for file in hosts resolv.conf; do
  touch "/mnt/etc/$file"
  mount --bind "/etc/$file" "/mnt/etc/$file"
done
cd /mnt
PATH=$PATH:/usr/sbin:/sbin pivot_root . mnt
umount -l /mnt
cd "$here" 2>/dev/null || cd /
export APPTAINER_CONFIGDIR="${tree%/*}/home/.apptainer"
exec /usr/bin/unshare --user --map-user=1000 --map-group=1000 -- /usr/bin/apptainer "$@"
' sh {tree} "$PWD" "$@"
"""


def main() -> int:
    """Make what is missing in the folder; the exit code is 1 where it cannot be had."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where it is kept")
    parser.add_argument("--mirror", default=MIRROR, help=f"of Debian; {MIRROR} unless given")
    options = parser.parse_args()
    folder = options.folder.resolve()
    absent = [tool for tool in ("apt-get", "dpkg-deb", "unshare") if shutil.which(tool) is None]
    if absent:
        print(f"not installed: {', '.join(absent)}", file=sys.stderr)
        return 1
    try:
        for name, (suite, packages) in (("runtime", RUNTIME), ("base", BASE)):
            if not (folder / name).exists():
                begun = time.monotonic()
                unpack(suite, packages, folder / name, mirror=options.mirror)
                print(f"{folder / name}: {suite}, {time.monotonic() - begun:.0f} s")
        enter(folder)
        said = subprocess.run([folder / "bin/apptainer", "--version"], capture_output=True, text=True, check=True)
    except subprocess.CalledProcessError as error:
        print(f"{error}\n{error.stdout or ''}{error.stderr or ''}", file=sys.stderr)
        return 1
    print(f"{folder / 'bin/apptainer'}: {said.stdout.strip()}")
    return 0


def unpack(suite: str, packages: list[str], tree: Path, *, mirror: str) -> None:
    """Unpack Debian's ``packages``, and all that they depend on, into the new folder ``tree``; none is configured.

    Raises:
        CalledProcessError: apt cannot reach the mirror, does not trust it, or does not know a package.
    """
    work = tree.with_name(f"{tree.name}.part")
    shutil.rmtree(work, ignore_errors=True)
    apt = _apt(work, f"deb [signed-by={KEYRING}] {mirror} {suite} main\n")
    for command in (["update"], ["install", "--yes", "--download-only", "--no-install-recommends", *packages]):
        subprocess.run([*apt, *command], capture_output=True, text=True, check=True)
    archives = sorted(
        (work / "archives").glob("*.deb"), key=lambda path: (not path.name.startswith("base-files"), path)
    )
    for archive in archives:  # base-files first: it has the links that the others' folders lead through
        subprocess.run(["dpkg-deb", "--extract", archive, work / "tree"], capture_output=True, text=True, check=True)
    _settle(work / "tree", home=tree.parent / "home")
    (work / "tree").rename(tree)
    shutil.rmtree(work)


def enter(folder: Path) -> None:
    """Write the program that runs Apptainer in its tree."""
    (folder / "home").mkdir(exist_ok=True)
    (folder / "bin").mkdir(exist_ok=True)
    program = folder / "bin/apptainer"
    program.write_text(ENTER.replace("{tree}", _quoted(folder / "runtime")), encoding="utf-8")
    program.chmod(0o755)


def _apt(work: Path, source: str) -> list[str]:
    """apt-get with all its state in ``work``, to which no package is installed."""
    for name in ("lists/partial", "archives/partial", "etc"):
        (work / name).mkdir(parents=True)
    (work / "sources.list").write_text(source, encoding="utf-8")
    (work / "status").touch()
    settings = {
        "Dir::State": work, "Dir::State::lists": work / "lists", "Dir::State::status": work / "status",
        "Dir::Cache": work, "Dir::Cache::archives": work / "archives", "Dir::Etc::sourcelist": work / "sources.list",
        "Dir::Etc::sourceparts": "/dev/null", "Dir::Etc::preferencesparts": "/dev/null",
        "Acquire::Languages": "none", "APT::Sandbox::User": "", "Debug::NoLocking": "1",
    }  # fmt: skip
    return ["apt-get", "--quiet", *(word for key, value in settings.items() for word in ("-o", f"{key}={value}"))]


def _settle(tree: Path, *, home: Path) -> None:
    """What the packages' own scripts would have done, as far as it matters: users, and whom to trust."""
    for path in tree.rglob("*"):
        os.chown(path, os.geteuid(), os.getegid(), follow_symlinks=False)  # Apptainer's one user cannot copy others'
    texts = {"passwd": USERS.format(home=home), "group": GROUPS, "hosts": "", "resolv.conf": "", "localtime": ""}
    for name, text in texts.items():
        (tree / "etc" / name).write_text(f"{text}\n", encoding="utf-8")
    if AUTHORITIES.exists():
        (tree / "etc/ssl/certs").mkdir(parents=True, exist_ok=True)
        shutil.copy(AUTHORITIES, tree / "etc/ssl/certs")
    for marker in tree.glob("usr/lib/python3*/EXTERNALLY-MANAGED"):
        marker.unlink()  # as in the official Python images, pip is the one who manages


def _quoted(path: Path) -> str:
    return "'" + str(path).replace("'", "'\"'\"'") + "'"


if __name__ == "__main__":
    sys.exit(main())
