"""A probe as a job of its own: where it runs, on how many ranks, and what they measure."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from allpull.config.load import bare_spec
from allpull.errors import BadInput
from allpull.jobs.placement import Notify, check_restarts, find_hosts, need_torch, place_ranks
from allpull.launch.detect import AUTO
from allpull.launch.execute import execute
from allpull.launch.job import prepare
from allpull.launch.launcher import choose
from allpull.launch.ssh.launcher import read_hosts
from allpull.rehearse.launcher import Rehearse
from allpull.schema.run import RunRecord
from allpull.schema.spec import RunSpec

MAX_RANKS = 65536
TRAINING_OPTIONS = ("data.", "model.", "train.", "parallel.", "watch.", "slurm.array")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRequest:
    """A probe as a user asks for it: its ``name``, where it runs, and ``sets``, overrides such as ``launch.hosts=2``.

    ``accepts`` are options of a training that this probe uses too; ``min_ranks`` is its number of ranks where neither
    ``ranks`` nor the launcher gives one.
    """

    name: str
    ranks: int | None = None
    launcher: str | None = None
    sets: Sequence[str] = field(default_factory=tuple)
    accepts: Sequence[str] = ()
    min_ranks: int = 2


def specification(request: ProbeRequest, *, notify: Notify = lambda _: None) -> RunSpec:
    """The specification of a probe, on the launcher that is requested or found here.

    Raises:
        BadInput: an option makes no sense, or is one of a training.
    """
    sets, accepts = request.sets, request.accepts
    given = {key.strip(): value.strip() for key, _, value in (text.partition("=") for text in sets)}
    refused = next((key for key in given if key.startswith(TRAINING_OPTIONS) and key not in accepts), None)
    if refused is not None:
        known = ", ".join([*accepts, "launch.…, ssh.…, slurm.…, container.… and observe.…"])
        raise BadInput(f"--set {refused}: this probe does not use it", hint=f"it takes {known}")
    launcher = request.launcher or given.get("launch.launcher", "").strip("\"'") or AUTO
    ranks = request.ranks
    if ranks is None and given.get("launch.ranks", "").isdecimal():
        ranks = int(given["launch.ranks"])
    limit = given.get("launch.hosts", "")
    hosts = int(limit[:9]) if limit.isdecimal() else find_hosts(launcher, os.environ).hosts
    count = count_ranks(ranks, launcher, hosts, least=request.min_ranks)
    own_sets = [f"launch.ranks={count}", f"launch.launcher={json.dumps(launcher)}"]
    spec = place_ranks(bare_spec([f"name=probe-{request.name}", *sets, *own_sets]), os.environ, sets, notify=notify)
    choose(spec.launch.launcher)
    check_restarts(spec)
    return spec


def count_ranks(requested: int | None, launcher: str, hosts: int = 1, *, least: int = 2) -> int:
    """How many ranks to start: ``requested``, else those of the cluster file, else one per host and at least ``least``.

    ``hosts`` counts if the launcher itself names no hosts.

    Raises:
        BadInput: they cannot be started, or the cluster file or host list holds faults.
    """
    if requested is not None:
        if not 1 <= requested <= MAX_RANKS:
            raise BadInput(f"-n {requested} is not between 1 and {MAX_RANKS} ranks", hint="such as -n 4")
        return requested
    name, _, argument = launcher.partition(":")
    chosen = choose(launcher) if name == "rehearse" else None
    if isinstance(chosen, Rehearse):
        return chosen.ranks
    return max(least, len(read_hosts(argument)) if name == "ssh" else hosts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """A checked probe: its specification, what its ranks measure, and ``command``, which is recorded as its origin."""

    name: str
    spec: RunSpec
    options: Mapping[str, object]
    command: Sequence[str]


def run_probe(probe: Probe, out: Path, *, notify: Notify) -> tuple[RunRecord, Path]:
    """Run a probe to its end; its final record and its run directory.

    Raises:
        AllpullError: it could not be started.
    """
    need_torch()
    launcher = choose(probe.spec.launch.launcher)
    module = f"allpull.probe.{probe.name}"
    job = prepare(probe.spec, kind="probe", module=module, command=probe.command, out=out, options=dict(probe.options))
    record = execute(job, launcher, lambda: None, notify)
    notify(f"run directory: {job.directory}")
    return record, job.directory
