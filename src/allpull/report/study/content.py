"""Everything that the report of a study draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from allpull.schema.audited import AuditFinding
from allpull.schema.pop import PopEfficiencies
from allpull.schema.results import RunDetail
from allpull.schema.studied import Changed, StudyPoint, StudyResult
from allpull.schema.tuned import TuneResult

NO_NUMBER = ("study.title", "study.notes", "study.timeout", "study.limit")
"""Beginnings of settings that do not decide what is measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyReport:
    """A study, and what its own numbers contradict or leave unchecked.

    ``details`` and POP efficiencies are of one run of each point, by point id; ``tuning`` is that of its directory.
    """

    study: StudyResult
    details: Mapping[str, RunDetail] = field(default_factory=dict)
    pop: Mapping[str, PopEfficiencies] = field(default_factory=dict)
    findings: Sequence[AuditFinding] = ()
    unchecked: Sequence[str] = ()
    tuning: TuneResult | None = None

    @property
    def changed(self) -> list[Changed]:
        """What ``--fit-here`` changed of what is measured: limits and notes move no number."""
        return [one for one in self.study.changed if not one.what.startswith(NO_NUMBER)]

    @property
    def measured(self) -> list[StudyPoint]:
        """The points with a throughput above 0."""
        return [point for point in self.study.points if point.throughput is not None and point.throughput.value > 0]
