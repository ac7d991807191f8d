"""Text that titles and remedies share: phases, names that are safe to paste into a shell, tools that the hosts have.

Names of hosts come from run directories, which are untrusted input.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from allpull.explain.evidence.machine import Machine

WHERE = {
    "copy": "copying to the device",
    "forward": "in forward",
    "backward": "in backward",
    "optimizer": "in the optimizer",
    "host": "issuing work",
    "other": "between its phases",
    "input": "in its loader",
}
"""Phase → where the time is lost, in a sentence."""


def quoted(names: Iterable[str]) -> str:
    """``names`` as one shell word, a list with commas as Slurm reads it.

    >>> quoted(["node1", "node2"]), quoted(["node1; reboot"])
    ('node1,node2', "'node1; reboot'")
    """
    return shlex.quote(",".join("".join(one for one in name if one.isprintable()) for name in names))


def leave_out(machine: Machine, *hosts: str) -> str:
    """How to run without ``hosts`` until they are repaired, to append to a remedy; empty where no other is known."""
    named = [host for host in hosts if host]
    if not named or len(machine.host_names) <= len(named):
        return ""
    return f"; until it is repaired, leave it out: sbatch --exclude={quoted(named)}"


def clocks(machine: Machine, *hosts: str) -> str:
    """The command that shows the clocks of the processors of ``hosts``: of accelerators, or else of CPUs."""
    names = [name.lower() for host in hosts or machine.host_names for name in machine.gpus.get(host, ())]
    if not names:
        return "cpupower frequency-info"
    is_amd = all("amd" in name or "instinct" in name or "radeon" in name for name in names)
    return "amd-smi metric --clock --temperature" if is_amd else "nvidia-smi -q -d CLOCK,PERFORMANCE"
