"""Text that titles and remedies share: what to do where a run was started, and names that are safe in a shell.

A remedy names what exists there: options of ``--set`` only where allpull starts the ranks, flags of the command that
starts them elsewhere, Slurm only in a job of Slurm, and otherwise the line of the program.
Names of hosts come from run directories, which are untrusted input.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from allpull.explain.evidence.hosts.binding import Confined, share_no_cpus
from allpull.explain.evidence.hosts.machine import Machine
from allpull.explain.evidence.start import Start
from allpull.explain.remedy import Action, environment, joined, program, sentence, shell, starter, within

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
BIND_ITSELF = (
    'os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[int(os.environ["LOCAL_RANK"])'
    '::int(os.environ["LOCAL_WORLD_SIZE"])])'
)
"""The cores of a host dealt out to its ranks; torch's launchers set both variables."""
DIVIDED = (
    "in the IterableDataset, let each worker skip what the others read: torch.utils.data.get_worker_info() has its "
    "number, and how many there are"
)
NAMED = 5  # steps by number
LEAST_GAP = 10  # steps between two windows of a profiler
CAP_MIB = 25  # of a bucket of DDP, by default, except for the first
TOPOLOGY = shell("nvidia-smi topo -m")
MEASURE_IT = sentence("; measure it: ", shell("allpull compare BEFORE --with AFTER"))


def option_or(start: Start, option: str, value: object, otherwise: Action | None = None) -> Action:
    """``--set`` with ``option``, or ``otherwise`` where there is no such option.

    >>> option_or(Start(starter="train"), "train.batch", 8, program("DataLoader(batch_size=8)")).text
    '--set train.batch=8'
    """
    if start.sets(option):
        return starter(f"--set {option}={value}", option)
    return otherwise or Action()


def variable(start: Start, name: str, value: object) -> Action:
    """How to give all ranks a variable of the environment."""
    setting = f"{name}={value}"
    return starter(f"mpirun -x {setting}", name) if start.by_mpi else environment(f"export {setting}", name)


def own_cores(start: Start, machine: Machine, ranks: Sequence[int] | None = None) -> Action:
    """How to bind ``ranks``, None: all, to cores that no other rank uses; empty where they are bound so."""
    is_so = share_no_cpus(machine, range(len(machine.hosts)) if ranks is None else ranks)
    return Action() if is_so else _bound_to_cores(start, machine)


def _bound_to_cores(start: Start, machine: Machine) -> Action:
    if start.sets("launch.bind"):
        return starter("--set launch.bind=cores", "launch.bind")
    commands = {"srun": f"srun --cpu-bind=cores --cpus-per-task={_cpus_per_rank(machine)}", "mpirun": BIND_BY_MPI}
    if start.starter == "torchrun" and machine.accelerators:
        return starter("torchrun --numa-binding=exclusive")
    command = commands.get(start.starter)
    return starter(command) if command else sentence(program(BIND_ITSELF), " at the top of the program")


BIND_BY_MPI = "mpirun --bind-to core"
UNBOUND = Action(text="start without taskset, and without os.sched_setaffinity in the program")


def more_cpus(start: Start, machine: Machine, few: Confined) -> Action:
    """How to let the ranks of a host run on more of its CPUs than the ``few`` that they are bound to."""
    each = few.of // (len(machine.ranks_of(few.host)) if start.starter != "torchrun" else 1)
    wider = _of_slurm(start, "slurm.cpus_per_rank", each, f"srun --cpus-per-task={each}")
    if start.starter == "mpirun":
        wider = starter("mpirun --bind-to none")
    return wider or UNBOUND


def equal_cpus(start: Start, machine: Machine) -> Action:
    """How to let a rank run on as many CPUs as the others."""
    how = _bound_to_cores(start, machine) if start.starter in {"srun", "mpirun"} else UNBOUND
    return within("let it run on as many CPUs as the others: ", how)


def threads(start: Start, machine: Machine) -> Action:
    """How to give each rank no more threads than it has cores; empty where it has no more."""
    fit = _cpus_per_rank(machine)
    if start.threads is not None and start.threads <= fit:
        return Action()
    if start.sets("launch.threads"):
        return starter(f"--set launch.threads={fit}", "launch.threads")
    return variable(start, "OMP_NUM_THREADS", fit)


def fewer_ranks(start: Start, machine: Machine) -> Action:
    """How to start no more ranks on a host than it has CPUs; empty where there are no more, or that is not known."""
    fits = [int(cpus) for host, cpus in (machine.cpus or {}).items() if 1 <= int(cpus) < len(machine.ranks_of(host))]
    if not fits:
        return Action()
    return sentence("no more ranks than CPUs: ", ranks_flag(start, machine, min(fits) * len(machine.host_names)))


def ranks_flag(start: Start, machine: Machine, ranks: int) -> Action:
    """How to start ``ranks`` ranks."""
    hosts = max(1, len(machine.host_names))
    if start.launcher == "slurm" or (start.on_slurm and start.starter == "command"):
        return starter(f"sbatch --nodes={-(-ranks // -(-ranks // hosts))} --ntasks-per-node={-(-ranks // hosts)}")
    flags = {
        "train": f"allpull train -n {ranks}",
        "run": f"allpull run -n {ranks}",
        "torchrun": f"torchrun --nproc-per-node={-(-ranks // hosts)}",
        "srun": f"srun --ntasks={ranks}",
        "mpirun": f"mpirun -np {ranks}",
    }
    flag = flags.get(start.starter)
    return starter(flag) if flag else Action(text=f"{ranks} ranks")


def near_gpu(start: Start) -> Action:
    """How to bind each rank to the CPUs near its GPU."""
    if start.sets("launch.bind"):
        return starter("--set launch.bind=numa", "launch.bind")
    commands = {"srun": "srun --gpu-bind=closest", "torchrun": "torchrun --numa-binding=node"}
    command = commands.get(start.starter)
    return starter(command) if command else Action(text="taskset --cpu-list with the CPUs of its memory node")


def bucket_size(start: Start, cap_mib: int) -> Action:
    """How to give DDP buckets of another size."""
    return option_or(start, "parallel.bucket_mb", cap_mib, keyword_of_ddp(f"bucket_cap_mb={cap_mib}"))


def keyword_of_ddp(setting: str) -> Action:
    """How to give DDP ``setting``, also where a framework wraps the network.

    >>> keyword_of_ddp("bucket_cap_mb=25").text
    'DDP(model, bucket_cap_mb=25), TrainingArguments(ddp_bucket_cap_mb=25) or DDPStrategy(bucket_cap_mb=25)'
    """
    of_transformers, of_lightning = f"TrainingArguments(ddp_{setting})", f"DDPStrategy({setting})"
    return sentence(program(f"DDP(model, {setting})"), f", {of_transformers} or {of_lightning}")


def save_less(start: Start) -> Action:
    """How to spend less time on checkpoints."""
    if not start.sets("train.async_checkpoint"):
        return sentence(
            "save in the background: ",
            program("from torch.distributed.checkpoint import async_save"),
            "; or less often",
        )
    every = 2 * start.checkpoint_every
    return joined(
        "; ",
        within("save in the background: ", option_or(start, "train.async_checkpoint", "true")),
        within("or less often: ", option_or(start, "train.checkpoint_every", every)) if every else Action(),
    )


def exclusive(start: Start) -> Action:
    """How to keep other jobs from the hosts; empty without Slurm."""
    return _of_slurm(start, "slurm.exclusive", "true", "sbatch --exclusive")


def cpus_for_workers(start: Start, machine: Machine) -> Action:
    """How to request more CPUs for each rank; empty without Slurm."""
    more = 2 * _cpus_per_rank(machine)
    return _of_slurm(start, "slurm.cpus_per_rank", more, f"sbatch --cpus-per-task={more}")


def one_switch(start: Start) -> Action:
    """How to run on hosts that are near each other; empty where nobody knows which these are."""
    return _of_slurm(start, "slurm.switches", "1@00:30:00", "sbatch --switches=1@00:30:00")


def equal_hosts(start: Start) -> Action:
    """How to run on hosts of one kind; empty without Slurm."""
    return _of_slurm(start, "slurm.constraint", "FEATURE", "sbatch --constraint=FEATURE")


def evaluation_job(start: Start) -> Action:
    """Evaluation apart from the training."""
    after = (": ", starter("sbatch --dependency=after:JOB")) if start.on_slurm else ()
    return sentence("in a separate job, from checkpoints", *after)


def _of_slurm(start: Start, option: str, value: object, line: str) -> Action:
    if start.launcher == "slurm" and start.sets(option):
        return starter(f"--set {option}={value}", option)
    return starter(line) if start.on_slurm else Action()


def numbered(steps: NDArray[np.int64]) -> str:
    """The first ``NAMED`` of ``steps``, by number.

    >>> numbered(np.arange(12, 4000, 1000)), numbered(np.arange(6))
    ('12, 1,012, 2,012, 3,012', '0, 1, 2, 3, 4 and more')
    """
    return ", ".join(f"{step:,}" for step in steps[:NAMED]) + (" and more" if steps.size > NAMED else "")


def workers(
    start: Start, machine: Machine, number: int | None = None, now: int | None = None, *, ahead: int = 4
) -> Action:
    """How to read with ``number`` workers in each rank; None: as many as it has CPUs, and more than it has ``now``.

    Each makes ``ahead`` batches in advance.
    """
    number = max(_cpus_per_rank(machine), (now or 0) + 1) if number is None else number
    if start.starter == "train":
        if start.folder:
            return sentence(option_or(start, "data.workers", number), "; a pack is read faster")
        if not start.packed:
            pack = starter("--set data.name=pack --set data.path=PACK")
            return sentence("a pack is read faster: allpull pack, then ", pack)
        return option_or(start, "data.threads", number)
    pinned = ", pin_memory=True" if machine.accelerators else ""
    return program(f"DataLoader(num_workers={number}, prefetch_factor={ahead}, persistent_workers=True{pinned})")


def fast_interface(start: Start) -> Action:
    """How to choose the network interface."""
    if start.sets("launch.interface"):
        gloo = option_or(start, "launch.interface", "ib0")
    else:
        gloo = variable(start, "GLOO_SOCKET_IFNAME", "ib0")
    return joined(", ", variable(start, "NCCL_SOCKET_IFNAME", "ib0"), gloo)


def record_less(start: Start) -> Action:
    """How to record some of the steps alone."""
    if start.starter in {"run", "torchrun", "srun", "mpirun", "command"}:
        fewer, local = starter("allpull run --steps 100:200"), starter("allpull run --out DIR")
        return sentence("record fewer steps: ", fewer, "; or on a local disk: ", local)
    out = (": ", starter("allpull train --out DIR")) if start.starter == "train" else ()
    return sentence("record on a local disk", *out)


def mark_or_trace(start: Start, steps: NDArray[np.int64] | None = None) -> Action:
    """How to see what the program does between its phases; in a few ``steps``, if it is there: (n,), ascending.

    Only equal distances of them can be traced.
    """
    if start.starter in {"run", "torchrun", "srun", "mpirun", "command"}:
        when = "every=100"
        gaps = np.diff([] if steps is None else steps)
        if steps is not None and gaps.size and gaps.min() == gaps.max() >= LEAST_GAP:
            when = f"every={gaps[0]},first={max(steps[0] - 1, 0)}"
        mark, trace = program('with allpull.phase("metrics"):'), starter(f"allpull run --trace {when}")
        return sentence("mark what happens there (", mark, ") or trace it: ", trace)
    stack = shell("py-spy dump --pid PID")
    return sentence("see what happens there: ", stack, ", several times, or a window of torch's profiler")


def quoted(names: Iterable[str]) -> str:
    """``names`` as one shell word, a list with commas as Slurm reads it.

    >>> quoted(["node1", "node2"]), quoted(["node1; reboot"])
    ('node1,node2', "'node1; reboot'")
    """
    return shlex.quote(",".join("".join(one for one in name if one.isprintable()) for name in names))


def leave_out(start: Start, machine: Machine, *hosts: str) -> Action:
    """How to run without ``hosts`` until they are repaired, to append to a remedy; empty where no other is known."""
    named = [host for host in hosts if host]
    if not named or len(machine.host_names) <= len(named):
        return Action()
    until = "; until it is repaired, leave it out: "
    if start.on_slurm:
        return sentence(until, starter(f"sbatch --exclude={quoted(named)}"))
    if start.launcher in {"ssh", "mpi"} or start.starter == "mpirun":
        return sentence(until, f"delete {quoted(named)} from the hosts file")
    if start.starter == "torchrun":
        return sentence(until, starter(f"torchrun --nnodes={len(machine.host_names) - len(named)}"), " on the others")
    return sentence(until, f"start on the hosts without {quoted(named)}")


def clocks(machine: Machine, *hosts: str) -> Action:
    """The command that shows the clocks of the processors of ``hosts``: of accelerators, or else of CPUs."""
    names = [name.lower() for host in hosts or machine.host_names for name in machine.gpus.get(host, ())]
    if not names:
        return shell("cpupower frequency-info")
    is_amd = all("amd" in name or "instinct" in name or "radeon" in name for name in names)
    return shell("amd-smi metric --clock --temperature" if is_amd else "nvidia-smi -q -d CLOCK,PERFORMANCE")


def _cpus_per_rank(machine: Machine) -> int:
    """CPUs of the fullest host for each of its ranks, at least 1."""
    known = [
        cpus / max(1, len(machine.ranks_of(host)))
        for host, cpus in (machine.cpus or {}).items()
        if machine.ranks_of(host)
    ]
    return max(1, int(min(known, default=1)))
