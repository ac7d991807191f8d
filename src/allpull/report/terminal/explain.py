"""An explanation on the terminal: efficiency tree, findings with remedies, and the manual of the rules.

Nothing is passed to rich as markup, so a name in brackets stays a name; control characters are removed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from allpull.report import idle_text
from allpull.report.pop_layout import MAPPING, sentences
from allpull.report.printable import printable
from allpull.report.terminal.table import bullets
from allpull.report.wording import ABSENT, bounded, certain_part, percent, rate, times
from allpull.schema.explained import Efficiency, Evidence, ExplainResult, Finding
from allpull.schema.results import Interval
from allpull.units import counted, show_bytes, show_count, show_steps, show_time

GOOD, FAIR = 0.9, 0.8  # POP: above 0.8 is acceptable
WIDE = 70  # columns from which the meaning of a factor fits beside it, on a few lines
COARSE = 0.01  # half width of an interval from which a factor's third decimal is meaningless
MOST_EVIDENCE = 6  # numbers per finding; --json has all
MOST_NOTES = 12
INDENT = 3

FACTORS = (
    ("parallel", "parallel efficiency", "share of time in which ranks compute: the product of the factors below"),
    ("transfer", "  transfer", "gradient exchange that computation does not hide"),
    ("input", "  input", "waiting for data"),
    ("sequential", "  sequential", "checkpoints, and evaluation by a few ranks"),
    ("orchestration", "  orchestration", "copies and work between the phases"),
    ("serialisation", "  serialisation", "another rank is late each step"),
    ("load_balance", "  load balance", "the same rank is late each step"),
    ("collectives", "  collectives", "blocked in collectives, waiting or exchanging: not all ranks were recorded"),
    ("computational", "computational scaling", "useful time per sample of the reference ÷ that of this run"),
    ("global_", "global efficiency", "parallel efficiency × computational scaling"),
)
"""Field of ``Efficiency``, its name, and the loss that it measures."""


def explained(result: ExplainResult) -> RenderableType:
    """The whole explanation, laid out for the width of the console."""
    return _Explained(result)


def rules(summaries: Mapping[str, str]) -> RenderableType:
    """All rules: slug and summary."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column()
    for slug, line in summaries.items():
        grid.add_row(Text(printable(slug)), Text(printable(line)))
    return grid


def rule(slug: str, summary: str, sections: Mapping[str, str]) -> RenderableType:
    """One page of the manual: headings with their paragraphs."""
    return _Page(slug, summary, sections)


@dataclass(frozen=True, slots=True)
class _Explained:
    """Headline, efficiency tree, findings, POP's reading of the tree, and notes of one explanation."""

    result: ExplainResult

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        result = self.result
        yield Text(headline(result), style="bold")
        if result.efficiency is not None:
            yield _tree(result.efficiency, result.gains, wide=options.max_width >= WIDE)
        idle = idle_text.sentence(result.idle)
        if idle:
            yield bullets([idle])
        if result.healthy:
            yield Text(printable(result.healthy))
        rules_shown: set[str] = set()
        for number, finding in enumerate(result.findings, start=1):
            yield Text()
            yield from _finding(number, finding, with_doubts=finding.rule not in rules_shown)
            rules_shown.add(finding.rule)
        if result.pop is not None and result.ranks > 1:
            yield Text()
            yield Text("In POP's words:")
            yield bullets([*sentences(result.pop), f"{MAPPING}."])
        notes = result.notes
        if notes:
            shown = [
                *notes[:MOST_NOTES],
                *([f"{len(notes) - MOST_NOTES} more in --json"] if len(notes) > MOST_NOTES else []),
            ]
            yield Text()
            yield Text("Note:")
            yield bullets(shown)


@dataclass(frozen=True, slots=True)
class _Page:
    """One rule of the manual."""

    slug: str
    summary: str
    sections: Mapping[str, str]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(printable(self.slug), style="bold")
        yield Text(printable(self.summary))
        for heading, text in self.sections.items():
            yield Text()
            yield Text(printable(heading), style="bold")
            for paragraph in text.split("\n\n"):
                yield Padding(Text(printable(" ".join(paragraph.split()))), (0, 0, 0, INDENT))


def headline(result: ExplainResult) -> str:
    """Ranks, hosts and the steps that ``result`` rests on."""
    window = result.window
    where = f"{counted(result.ranks, 'rank')} on {counted(result.hosts, 'host')}"
    if window.first_step is None or window.last_step is None:
        return f"{where}: {'no steps to replay' if result.findings else 'nothing to explain'}"
    step = show_time(window.seconds / window.steps)
    return f"{where}, {show_steps(window.steps, window.first_step, window.last_step)} (mean {step})"


def _tree(tree: Efficiency, gains: Mapping[str, float], *, wide: bool) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)
    table.add_column("efficiency", no_wrap=True)
    table.add_column("", justify="right", no_wrap=True)
    table.add_column("if gone", justify="right", no_wrap=True)
    if wide:
        table.add_column("what is lost there")
    for field, name, loss in FACTORS:
        factor: Interval | None = getattr(tree, field)
        if factor is None:
            continue
        gain = gains.get(field)
        cells = [
            Text(name),
            Text(_factor(factor), style=_tone(factor.value)),
            Text(_if_gone(gain)),
        ]
        table.add_row(*cells, *([Text(loss)] if wide else []))
    return table


def _factor(factor: Interval) -> str:
    """A factor ± half the width of its interval, to the digit that this allows."""
    if factor.low is None or factor.high is None:
        return f"{factor.value:.2f}"
    half = (factor.high - factor.low) / 2
    digits = 2 if half >= COARSE else 3
    return f"{factor.value:.{digits}f} ± {half:.{digits}f}"


def _if_gone(gain: float | None) -> str:
    """The speed-up without one kind of loss; "none" where another loss replaces it.

    >>> _if_gone(1.25), _if_gone(0.99), _if_gone(None)
    ('1.25×', 'none', '–')
    """
    if gain is None:
        return ABSENT
    return times(gain) if round(gain, 2) >= 1 else "none"


def _tone(value: float) -> str:
    if value >= GOOD:
        return "green"
    return "yellow" if value >= FAIR else "red"


def _finding(number: int, finding: Finding, *, with_doubts: bool) -> Iterator[RenderableType]:
    """One finding; ``with_doubts`` adds when it is wrong, which is printed once per rule."""
    yield Text.assemble(
        (f"{number}. ", "bold"), (printable(finding.title), "bold"), (f"  [{printable(finding.rule)}]", "dim")
    )
    lines = [_price(finding), f"What to do: {finding.remedy}."]
    yield from (Padding(Text(printable(line)), (0, 0, 0, INDENT)) for line in lines)
    shown = [f"{one.what}: {value(one)} ({one.source})" for one in finding.evidence[:MOST_EVIDENCE]]
    yield Padding(bullets(shown), (0, 0, 0, INDENT))
    if with_doubts and finding.wrong_when:
        yield Padding(Text(printable(f"When it is wrong: {finding.wrong_when}"), style="dim"), (0, 0, 0, INDENT))


def _price(finding: Finding) -> str:
    """The cost of a finding and the speed-up without it, or their upper bounds."""
    if finding.loss_s_per_step is None or finding.gain is None:
        return "Advice: no measurement of this run can price it."
    gain, subject = finding.gain, "Then it costs" if finding.is_hidden else "It costs"
    cost = f"{show_time(finding.loss_s_per_step)} per step, {percent(finding.loss_share)} of it"
    if gain.is_at_most:
        return f"{subject} at most {cost}; without it training is {bounded(gain)} as fast{certain_part(gain)}."
    return f"{subject} {cost}; without it training is {times(gain.value)} as fast{_range(gain)}."


def _range(gain: Interval) -> str:
    """The interval of a speed-up, to the digit in which its bounds differ; empty where they do not.

    >>> _range(Interval(value=1.27, low=1.22, high=1.31)), _range(Interval(value=1.27, low=1.271, high=1.274))
    (' (1.22× to 1.31×)', ' (1.271× to 1.274×)')
    >>> _range(Interval(value=1.27, low=1.27, high=1.27)), _range(Interval(value=1.27, low=None, high=None))
    ('', '')
    """
    if gain.low is None or gain.high is None:
        return ""
    for shown in (times, "{:,.3f}×".format):
        low, high = shown(gain.low), shown(gain.high)
        if low != high:
            return f" ({low} to {high})"
    return ""


def value(one: Evidence) -> str:
    """A number with its unit, and its interval if it has one.

    >>> value(Evidence(what="", value=0.04, unit="s", low=0.03, high=0.05, source=""))
    '40 ms (30 ms to 50 ms)'
    >>> value(Evidence(what="", value=2.0, unit="count", source=""))
    '2'
    """
    shows: Mapping[str, Callable[[float], str]] = {
        "s": show_time,
        "share": percent,
        "bytes/s": rate,
        "bytes": show_bytes,
    }
    unit = "" if one.unit == "count" else f" {one.unit}"

    def show(number: float) -> str:
        return shows[one.unit](number) if one.unit in shows else f"{show_count(number)}{unit}"

    if one.low is None or one.high is None:
        return show(one.value)
    return f"{show(one.value)} ({show(one.low)} to {show(one.high)})"
