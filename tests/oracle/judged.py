"""What explain says of a simulated run, beside the truth: the time with a fault over the time without it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.oracle.records import Recording, write
from tests.oracle.simulator import simulate
from tests.oracle.training import Training

import allpull
from allpull.schema.explained import ExplainResult, Finding


@dataclass(frozen=True, kw_only=True)
class Judged:
    """An explanation of a run with a fault, and how much faster it is without."""

    truth: float
    explained: ExplainResult

    @property
    def priced(self) -> list[Finding]:
        return [finding for finding in self.explained.findings if not finding.advice]

    def finding(self, *rules: str, ranks: list[int] | None = None) -> Finding:
        """The one finding of ``rules`` that names ``ranks``; else what was said instead."""
        fitting = [one for one in self.priced if one.rule in rules and (ranks is None or one.ranks == ranks)]
        assert len(fitting) == 1, self.said()
        return fitting[0]

    def said(self) -> str:
        """One line on what explain says, for people."""
        found = [
            f"{one.rule} {one.ranks or 'all'}"
            + (f" {one.gain.value:.3f} ({one.gain.low:.3f} to {one.gain.high:.3f})" if one.gain else " advice")
            for one in self.explained.findings
        ]
        level = f"{self.explained.window.level} level, error {self.explained.simulation_error}"
        return f"truth {self.truth:.3f}; {'; '.join(found) or self.explained.healthy or 'nothing'} [{level}]"

    def notes(self) -> str:
        return "\n".join(self.explained.notes)


def judge(folder: Path, faulty: Training, mended: Training | None = None, recording: Recording | None = None) -> Judged:
    """Record ``faulty``, let it be explained; the truth comes from simulating ``mended`` too."""
    recording = recording or Recording()
    history = simulate(faulty)
    first = recording.warmup
    truth = history.seconds(first) / simulate(mended).seconds(first) if mended is not None else 1.0
    explained = allpull.explain(write(history, folder, recording))
    return Judged(truth=truth, explained=explained)


def assert_priced(finding: Finding, truth: float, tolerance: float = 0.01) -> None:
    """The truth is in the stated interval, or the stated value within ``tolerance`` of it, as a speed-up ratio."""
    assert finding.gain is not None
    low, high = finding.gain.low, finding.gain.high
    near = abs(finding.gain.value / truth - 1.0) <= tolerance
    assert near or low <= truth <= high, f"truth {truth:.3f}, said {finding.gain}"


def assert_bound(finding: Finding, truth: float, slack: float = 0.005) -> None:
    """An upper bound, marked as one (high = value, low below it), that the truth does not exceed."""
    assert finding.gain is not None
    assert finding.gain.high == finding.gain.value, f"no bound: {finding.gain}"
    assert finding.gain.low <= truth * (1.0 + slack), f"truth {truth:.3f}, said {finding.gain}"
    assert truth <= finding.gain.high * (1.0 + slack), f"truth {truth:.3f}, said {finding.gain}"
