"""Everything that the report of a study draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from allpull.schema.audited import AuditFinding
from allpull.schema.results import Curve, RunDetail
from allpull.schema.studied import StudyPoint, StudyResult


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedCurves:
    """Accuracies of one published run, as fractions against epochs, named as in ``schema.results.Curve``."""

    series: str
    ranks: int
    curves: Sequence[Curve]


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyReport:
    """A study, details of its runs by point id, what its own numbers contradict, and published learning curves."""

    study: StudyResult
    details: Mapping[str, RunDetail] = field(default_factory=dict)
    findings: Sequence[AuditFinding] = ()
    unchecked: Sequence[str] = ()
    curves: Sequence[PublishedCurves] = ()

    @property
    def measured(self) -> list[StudyPoint]:
        """The points with a throughput above 0."""
        return [point for point in self.study.points if point.throughput is not None and point.throughput.value > 0]
