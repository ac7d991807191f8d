"""The runs side by side: their numbers, what is missing from them, their files, and commands to go on with."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import PurePath

from allpull.report.html.block import Block, Command, Commands, Links, Notice, Part, Points, Table, Text
from allpull.report.printable import short
from allpull.report.sections.summary import remaining_sentences
from allpull.report.sections.throughput import is_reference
from allpull.report.wording import (
    ABSENT,
    NAME_CHARACTERS,
    SCALING_WORDS,
    efficiencies,
    labels,
    listed_gaps,
    percent,
    spread,
    times,
)
from allpull.rundir import layout
from allpull.schema.reported import ScalingReport
from allpull.schema.results import RunDetail, RunMetrics, ShowResult
from allpull.units import counted, show_time

MOST_GAPS = 4  # listed here; the end of the page has all
MOST_LINKED = 8  # runs whose files are linked
STATUS_CHARACTERS = 20
COMMAND_CHARACTERS = 400
SPREAD = f"{ABSENT} means not measured; ± is half of a 95 % confidence interval."
LEGEND = (
    "A rank is one copy of the program; all ranks train the same model together, each on its share of the data. "
    "Speed-up compares samples per second with the reference run, and efficiency is the speed-up divided by what "
    f"perfect scaling would give. {SPREAD}"
)


def block(report: ScalingReport) -> Block:
    """A table of several runs, what else there is to say of them, gaps, commands and files."""
    show = report.show
    sentences = remaining_sentences(report)
    parts: list[Part] = [table(show), Text(text=LEGEND, quiet=True)] if len(show.runs) > 1 else []
    parts += [Points(items=sentences)] if sentences else []
    parts += [*_cautions(show), *_commands(report), *_links(report)]
    one = len(show.runs) == 1
    lead = show.runs[0].run if one else f"{counted(len(show.runs), 'run')} of one program, by number of ranks."
    return Block(title="The run" if one else "The runs", lead=lead, parts=parts)


def table(show: ShowResult, *, caption: str = "") -> Table:
    """One row per run, ``caption`` before the kind of scaling; a column that would be empty is left out."""
    has_names = len({run.name for run in show.runs}) > 1
    rows = [
        (
            label + _state(run, show),
            *([short(run.name, NAME_CHARACTERS)] if has_names else []),
            spread(run.throughput),
            show_time(run.step_s.median) if run.step_s else ABSENT,
            times(run.speedup),
            percent(share),
            percent(run.accuracy),
        )
        for label, run, share in zip(labels(show.runs), show.runs, efficiencies(show.runs), strict=True)
    ]
    columns = ["Run", *(["Name"] if has_names else [])]
    columns += ["Samples/s", "Step (median)", "Speed-up", "Efficiency", "Test accuracy"]
    kept = [place for place in range(len(columns)) if any(row[place] != ABSENT for row in rows)]
    runs = SCALING_WORDS[show.scaling] if show.scaling else "The runs" if len(rows) > 1 else "The run"
    return Table(
        caption=f"{caption}: {runs[0].lower()}{runs[1:]}" if caption else runs,
        columns=[columns[place] for place in kept],
        rows=[[row[place] for place in kept] for row in rows],
        text_columns=1 + has_names,
        marked=frozenset(index for index, run in enumerate(show.runs) if is_reference(run, show)),
    )


def _state(run: RunMetrics, show: ShowResult) -> str:
    states = ["reference"] if is_reference(run, show) else []
    states += [] if run.status == "completed" else [short(run.status, STATUS_CHARACTERS)]
    return f" ({', '.join(states)})" if states else ""


def _cautions(show: ShowResult) -> Iterator[Notice]:
    gaps = listed_gaps(show)
    if len(gaps) > MOST_GAPS:
        gaps = [*gaps[: MOST_GAPS - 1], f"and {len(gaps) - MOST_GAPS + 1:,} more gaps, listed at the end of this page"]
    if show.notes or gaps:
        yield Notice(title="Keep in mind", items=[*show.notes, *gaps])


def _commands(report: ScalingReport) -> Iterator[Commands]:
    """How to run the largest run again, compare it with the next one, and look at its steps in Perfetto."""
    detail = max(reversed(report.details), key=lambda one: one.metrics.ranks, default=None)  # of equals the newest
    if detail is None:
        return
    where = detail.metrics.directory
    newest = str(PurePath(where).parent / "latest")
    imported = "import" in detail.command[:2]  # traces of a job that allpull did not start
    timeline = f"{where}/{layout.TIMELINE}"
    lines = [
        ("Run it again, after a change", "" if imported else _as_typed(detail.command[:200])),
        ("Compare that run with this one", "" if imported else shlex.join(["allpull", "compare", where, newest])),
        (
            "One timeline of all ranks, for ui.perfetto.dev",
            shlex.join(["allpull", "show", where, "--perfetto", timeline]),
        ),
    ]
    commands = [Command(label=label, line=line) for label, line in lines if 0 < len(line) <= COMMAND_CHARACTERS]
    if commands:
        yield Commands(commands=commands)


def _as_typed(command: Sequence[str]) -> str:
    """A recorded command without the folder that ``allpull`` itself was found in; ``python -m allpull`` is that, too.

    >>> _as_typed(["/opt/bin/allpull", "run"]), _as_typed(["/lib/allpull/__main__.py", "train"])
    ('allpull run', 'allpull train')
    """
    own = [PurePath(part).name.replace("__main__.py", "allpull") for part in command[:1]]
    return shlex.join([*own, *command[1:]])


def _links(report: ScalingReport) -> Iterator[Links]:
    named = [pair for pair in zip(labels(report.show.runs), report.details, strict=True) if pair[1].linked_files]
    for label, detail in named[-MOST_LINKED:]:
        yield Links(title=_kind(label, detail), directory=detail.metrics.directory, paths=detail.linked_files)


def _kind(label: str, detail: RunDetail) -> str:
    what = ["timeline of all ranks"] * (layout.TIMELINE in detail.linked_files)
    what += ["traces of torch's profiler"] * any(path != layout.TIMELINE for path in detail.linked_files)
    return f"{label}: {' and '.join(what)}; open them in ui.perfetto.dev"
