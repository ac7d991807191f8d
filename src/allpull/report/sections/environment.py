"""What was it measured on? Machines, versions and settings, with differences between runs listed separately."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Sequence

from allpull.report.html.block import Block, Part, Table, Text
from allpull.report.printable import short
from allpull.report.wording import ABSENT, labels
from allpull.schema.host import HostRecord
from allpull.schema.reported import ScalingReport
from allpull.schema.results import RunDetail
from allpull.units import counted, show_bytes, show_count

TITLE = "What it ran on"
VALUE_CHARACTERS = 400
MEANT_TO_DIFFER = frozenset(
    {
        "run",
        "started (UTC)",
        "command",
        "ranks",
        "hosts",
        "global batch",
        "samples per rank and step",
        "load at start",
    }
)
"""What a scaling study varies, or what is not a setting: shown if it differs, not highlighted."""


def block(report: ScalingReport) -> Block:
    """Machines, versions, commands and settings of every run, differences first."""
    names = labels(report.show.runs)
    settings = _settings(report.details)
    same = {name: values[0] for name, values in settings.items() if len(set(values)) == 1}
    differing = {name: values for name, values in settings.items() if name not in same}
    marked = frozenset(index for index, name in enumerate(differing) if name not in MEANT_TO_DIFFER)
    parts: list[Part] = []
    if differing:
        rows = [(name, *values) for name, values in differing.items()]
        parts.append(
            Table(
                caption="Differs between the runs",
                columns=("Setting", *names),
                rows=rows,
                text_columns=1 + len(names),
                marked=marked,
            )
        )
    if marked:
        note = "Highlighted settings are not meant to differ in a scaling study: they can change the speed themselves."
        parts.append(Text(text=note, quiet=True))
    caption = "The same in all runs" if len(names) > 1 else "Settings"
    parts.append(Table(caption=caption, columns=("Setting", "Value"), rows=list(same.items()), text_columns=2))
    return Block(title=TITLE, lead=_lead(report.details, len(marked)), parts=parts)


def _lead(details: Sequence[RunDetail], odd: int) -> str:
    machines = {host.fingerprint for detail in details for host in detail.hosts}
    where = f"{counted(len(machines), 'kind')} of machine" if machines else "Machines were not recorded"
    if len(details) == 1:
        return f"{where}." if not machines else f"One run on {where}."
    verdict = (
        f"{counted(odd, 'setting')} that should be equal {'differs' if odd == 1 else 'differ'}"
        if odd
        else "all settings that should be equal are equal"
    )
    return f"{counted(len(details), 'run')} on {where}; {verdict}." if machines else f"{where}; {verdict}."


def _settings(details: Sequence[RunDetail]) -> dict[str, list[str]]:
    """Setting → its value in each run, as text; settings absent from all runs are omitted."""
    columns = [dict(_facts(detail)) for detail in details]
    order = dict.fromkeys(name for column in columns for name in column)
    table = {name: [column.get(name) or ABSENT for column in columns] for name in order}
    return {name: values for name, values in table.items() if set(values) != {ABSENT}}


def _facts(detail: RunDetail) -> Iterable[tuple[str, str]]:
    run = detail.metrics
    yield "run", short(run.run, VALUE_CHARACTERS)
    yield "started (UTC)", short(detail.created_utc, VALUE_CHARACTERS)
    yield "command", short(shlex.join(detail.command[:200]), VALUE_CHARACTERS)
    yield "ranks", f"{run.ranks:,}"
    yield "hosts", f"{run.hosts:,}"
    yield "threads per rank", _number(detail.threads_per_rank)
    yield "global batch", _number(run.global_batch)
    yield "samples per rank and step", _number(run.samples_per_rank_step)
    yield "seed", "" if detail.seed is None else str(detail.seed)
    if detail.git is not None:
        changed = " with uncommitted changes" if detail.git.dirty else ""
        yield "source", short(f"commit {detail.git.commit[:12]}{changed}", VALUE_CHARACTERS)
        yield "source repository", short(detail.git.remote or "", VALUE_CHARACTERS)
    hosts = [_host_facts(host) for host in detail.hosts]
    for name in hosts[0] if hosts else ():
        yield name, _over_hosts([facts[name] for facts in hosts])
    for name, version in detail.versions.items():
        yield f"version of {short(name, 60)}", short(version or "not installed", VALUE_CHARACTERS)
    for name, value in detail.environment.items():
        yield f"variable {short(name, 60)}", short(value, VALUE_CHARACTERS) or '""'


def _host_facts(host: HostRecord) -> dict[str, str]:
    """The known facts of one machine; empty if there are none."""
    return {
        "processor": host.cpu.model or host.cpu.architecture,
        "CPUs": _cpus(host),
        "vector instructions": ", ".join(host.cpu.vector),
        "accelerators": ", ".join(f"{number} × {name}" for name, number in Counter(host.gpus).items()) or "none",
        "accelerator driver": host.driver or "",
        "memory": "" if host.memory_bytes is None else show_bytes(host.memory_bytes),
        "network": ", ".join(_nics(host)),
        "file system of the records": host.file_system or "",
        "system": f"{host.os}, kernel {host.kernel}",
        "clock source": host.clock_source or "",
        "load at start": "" if host.load_1min is None else show_count(host.load_1min),
    }


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.6g}"


def _over_hosts(values: Sequence[str]) -> str:
    """The facts that the hosts of a run share; if they differ, each value with its number of hosts."""
    counts = Counter(short(value, VALUE_CHARACTERS) or ABSENT for value in values)
    if len(counts) == 1:
        return next(iter(counts))
    return "; ".join(f"{value} ({counted(number, 'host')})" for value, number in counts.most_common())


def _cpus(host: HostRecord) -> str:
    cpu = host.cpu
    facts = [
        (cpu.logical, "logical"),
        (cpu.physical, "cores"),
        (cpu.usable, "usable"),
        (cpu.quota, "allowed by the control group"),
    ]
    return ", ".join(f"{value:g} {what}" for value, what in facts if value is not None)


def _nics(host: HostRecord) -> list[str]:
    return [
        nic.name if nic.bits_per_s is None else f"{nic.name} {show_count(nic.bits_per_s / 1e9)} Gbit/s"
        for nic in host.nics[:8]
    ]
