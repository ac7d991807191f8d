"""The launches of the page on multi-node training are typed as they stand there, on two hosts of the names there."""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "how-to" / "multi-node-training.md"
FENCE = re.compile(r"^```(console|bash|toml)\n(.*?)^```", re.DOTALL | re.MULTILINE)
PROMPT = re.compile(r"^(login|node\d\d)\$ (.+)$", re.MULTILINE)
LIMIT_S = 400
SLURM = ("slurmctld", "slurmd")
SLURM_CONF = """
ClusterName=page
SlurmctldHost=login
AuthType=auth/none
CredType=cred/none
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={home}/state
SlurmdSpoolDir={home}/spool-%n
SlurmctldPidFile={home}/slurmctld.pid
SlurmdPidFile={home}/%n.pid
SlurmctldLogFile={home}/slurmctld.log
SlurmdLogFile={home}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=1
NodeName=node[01-02] CPUs=8
PartitionName=debug Nodes=ALL Default=YES State=UP MaxTime=60
"""


def section(title: str) -> list[tuple[str, str]]:
    """Language and content of the blocks of one section of the page."""
    text = re.split(rf"^##+ {title}\n", PAGE.read_text("utf-8"), flags=re.MULTILINE)[1]
    return FENCE.findall(re.split(r"^##", text, maxsplit=1, flags=re.MULTILINE)[0])


def typed(title: str) -> dict[str, str]:
    """What a section types on each host, as one script per host, in the order of the page."""
    scripts = dict[str, str]()
    for language, block in section(title):
        for host, command in PROMPT.findall(block) if language == "console" else ():
            scripts[host] = f"{scripts.get(host, '')}{command}\n"
    assert scripts, f"{PAGE.name}: no commands under {title}"
    return scripts


@dataclass(frozen=True, kw_only=True)
class Hosts:
    """Running hosts, by name the process that holds each; ``home`` is the home directory on all of them."""

    home: Path
    holders: dict[str, int]

    def start(self, host: str, script: str) -> subprocess.Popen[str]:
        """Type ``script`` on ``host``, in a shell as fresh as after a login."""
        inside = ["nsenter", f"--target={self.holders[host]}", "--net", "--uts", "--mount"]
        path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
        plain = ["env", "-i", f"PATH={path}", f"HOME={self.home}", f"SLURM_CONF={self.home}/slurm.conf"]
        return subprocess.Popen(
            [*inside, *plain, "bash", "-c", f"cd ~ && set -e\n{script}"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def run(self, scripts: dict[str, str]) -> dict[str, str]:
        """Type all scripts at once, and what each printed; they must succeed."""
        started = {host: self.start(host, script) for host, script in scripts.items()}
        printed = {host: process.communicate(timeout=LIMIT_S)[0] for host, process in started.items()}
        assert {process.returncode for process in started.values()} == {0}, "\n".join(printed.values())
        return printed


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """Hosts login, node01 and node02, with the folder of the job in a home directory that they share."""
    missing = [name for name in ("unshare", "nsenter", "ip", "tc") if shutil.which(name) is None]
    if missing or os.geteuid() != 0:
        pytest.skip(f"not installed: {', '.join(missing)}" if missing else "needs root")
    home = tmp_path_factory.mktemp("home")
    (home / "job").mkdir()
    (home / "job" / ".venv").symlink_to(sys.prefix)
    shutil.copy(ROOT / "examples" / "multi_node.py", home / "job")
    keys(home)
    program = [sys.executable, str(Path(__file__).with_name("page_hosts.py")), str(home)]
    environment = {**os.environ, "HOME": str(home)}
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True, env=environment) as world:
        line = world.stdout.readline() if world.stdout else ""
        if not line:
            pytest.skip("this system does not let us make namespaces")
        try:
            yield Hosts(home=home, holders=json.loads(line))
        finally:
            for process in processes_of(home):
                if process.pid != world.pid:  # which ends when its hosts have
                    process.kill()


def processes_of(home: Path) -> Iterator[psutil.Process]:
    """All processes of the hosts: they alone have this home directory, or name it."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # sshd overwrites its environment, and names its configuration
            if process.environ().get("HOME") == str(home) or any(f"{home}/" in word for word in process.cmdline()):
                yield process


def keys(home: Path) -> None:
    """An ssh that logs in without a question, and the configuration of its servers."""
    ssh = home / ".ssh"
    ssh.mkdir(mode=0o700)
    if shutil.which("ssh-keygen") is None:
        return
    Path("/run/sshd").mkdir(exist_ok=True)
    for name in ("host", "id_ed25519"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(ssh / name)], check=True)
    shutil.copy(ssh / "id_ed25519.pub", ssh / "authorized")
    (ssh / "known_hosts").write_text(f"node* {(ssh / 'host.pub').read_text()}")
    (home / "sshd.conf").write_text(
        f"HostKey {ssh}/host\nAuthorizedKeysFile {ssh}/authorized\n"
        "StrictModes no\nUsePAM no\nPidFile none\nPermitRootLogin yes\n"
    )


def check_training(printed: str, home: Path) -> None:
    """Four ranks trained, on rank 0 alone was printed, and it saved."""
    lines = re.findall(r"epoch (\d+): ([\d.]+)% of the test images, (\d+) ranks", printed)
    assert [(number, ranks) for number, _, ranks in lines] == [("1", "4"), ("2", "4"), ("3", "4")], printed
    assert float(lines[-1][1]) > 30, printed  # a tenth by chance
    (home / "job" / "multi_node.pt").unlink()


@pytest.mark.root
@pytest.mark.torch
@pytest.mark.ranks
def test_torchrun_on_two_hosts(hosts: Hosts) -> None:
    printed = hosts.run(typed("By hand"))
    check_training(printed["node01"], hosts.home)
    assert "epoch" not in printed["node02"]


@pytest.mark.root
@pytest.mark.ssh
@pytest.mark.torch
@pytest.mark.ranks
def test_torchrun_over_ssh(hosts: Hosts) -> None:
    if shutil.which("ssh") is None or not (hosts.home / "sshd.conf").exists():
        pytest.skip("not installed: openssh-server")
    answers = "until ssh node01 true && ssh node02 true; do sleep 0.2; done"
    hosts.run({"login": f"timeout 60 bash -c '{answers}'"})
    check_training(hosts.run(typed("Over ssh"))["login"], hosts.home)


@pytest.fixture(scope="module")
def slurm(hosts: Hosts) -> Iterator[Hosts]:
    """The hosts with a Slurm: its controller on login, its daemons on the nodes."""
    if missing := [name for name in SLURM if not (shutil.which(name) or Path(f"/usr/sbin/{name}").exists())]:
        pytest.skip(f"not installed: {', '.join(missing)}")
    home = hosts.home
    (home / "state").mkdir()
    (home / "slurm.conf").write_text(SLURM_CONF.format(home=home, user=getpass.getuser()))
    (home / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
    for number, (_, script) in enumerate(one for one in section("In Slurm") if one[0] == "bash"):
        (home / "job" / ("job.sh", "job-srun.sh")[number]).write_text(script)
    programs = {"login": "slurmctld", "node01": "slurmd", "node02": "slurmd"}
    daemons = [
        hosts.start(host, f"exec {name} -D > {home}/{host}.out 2>&1 < /dev/null") for host, name in programs.items()
    ]
    try:
        is_ready = '[ "$(sinfo -h -o "%t %D")" = "idle 2" ]'
        hosts.run({"login": f"for i in $(seq 300); do {is_ready} && exit; sleep 0.2; done; exit 1"})
        yield hosts
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
        for daemon in daemons:
            daemon.wait(60)


@pytest.mark.root
@pytest.mark.slurm
@pytest.mark.torch
@pytest.mark.ranks
def test_jobs_in_slurm(slurm: Hosts) -> None:
    """With one task per host and torchrun, and with one task per rank."""
    job = slurm.home / "job"
    for command in typed("In Slurm")["login"].splitlines():
        slurm.run({"login": command})
        (output,) = job.glob("slurm-*.out")
        check_training(output.read_text("utf-8"), slurm.home)
        output.unlink()


@pytest.mark.root
@pytest.mark.alone
@pytest.mark.torch
@pytest.mark.ranks
def test_explain_finds_the_slow_network(hosts: Hosts, tmp_path: Path) -> None:
    """What the page says of a link of 100 Mbit/s; ``hosts`` skips where there are no namespaces."""
    blocks = section("Record it, and ask what to change")
    (cluster,) = (block for language, block in blocks if language == "toml")
    (tmp_path / "two-hosts.toml").write_text(cluster)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    commands = re.findall(r"^\$ (allpull .*?)    # needs", "".join(block for _, block in blocks), re.MULTILINE)
    assert len(commands) == 2
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for command in (commands[0], f"{commands[1]} --json"):
        done = subprocess.run(
            ["bash", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    assert "network-bound" in done.stdout


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.ranks
def test_its_program_resumes_in_bfloat16(tmp_path: Path) -> None:
    program = tmp_path / "multi_node.py"  # a quarter of its images: in bfloat16 a CPU takes long
    text = (ROOT / "examples" / "multi_node.py").read_text("utf-8")
    assert text.count("Images(4096,") == 1
    program.write_text(text.replace("Images(4096,", "Images(1024,"), "utf-8")
    for epochs, resumed in (("1", []), ("2", ["--resume"])):
        launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"]
        options = ["--precision", "bf16", "--epochs", epochs, "--workers", "0", *resumed]
        command = [sys.executable, *launch, str(program), *options]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        ((epoch, score, _),) = re.findall(r"epoch (\d+): ([\d.]+)% of the test images, (\d+) ranks", done.stdout)
        assert epoch == epochs
    assert float(score) > 30, done.stdout
