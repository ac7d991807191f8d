"""Who paused, for how long, and what the others waited in meanwhile: only where they said what they waited in."""

from __future__ import annotations

from collections.abc import Callable

import polars as pl
import pytest

from allpull.analyse.clock.shared_clock import SharedClock
from allpull.analyse.steps.pauses import WAITS_SCHEMA, pauses, some_rank_goes_on
from allpull.rundir.read.events import EventLog
from allpull.schema.events import Span
from allpull.schema.results import Pause

S = 10**9
CLOCK = SharedClock(host_of={}, alignment=None, bound_s=0.0)


def span(name: str, begin_s: float, end_s: float, step: int = 0) -> Span:
    return Span(kind="span", name=name, begin_ns=round(begin_s * S), end_ns=round(end_s * S), step=step, epoch=0)


def waited(*rows: tuple[int, str, float, float]) -> pl.DataFrame:
    ns = [(rank, what, round(begin_s * S), round(end_s * S)) for rank, what, begin_s, end_s in rows]
    return pl.DataFrame(ns, schema=WAITS_SCHEMA, orient="row")


@pytest.fixture
def found(make_log: Callable[..., EventLog]) -> Callable[..., list[Pause]]:
    def find(spans: tuple[Span, ...], waits: pl.DataFrame | None) -> list[Pause]:
        return pauses({0: make_log(spans=spans), 1: make_log()}, waits, CLOCK, ranks=2, epochs=2)

    return find


def test_what_the_other_rank_waited_in_during_it_is_counted_and_nothing_else(found) -> None:
    waits = waited((1, "barrier", 10.5, 12.0), (1, "all_reduce", 11.9, 13.0), (1, "barrier", 20, 21), (0, "x", 10, 12))
    (one,) = found((span("evaluation", 10, 12),), waits)
    assert (one.ranks, one.times, one.seconds, one.s_per_epoch) == ([0], 1, 2.0, 1.0)
    assert one.waited_s == pytest.approx(1.6)
    assert one.waited_in == "barrier"


def test_after_the_last_step_nobody_says_what_he_waits_in(found) -> None:
    waits = waited((1, "barrier", 10.5, 12.0))
    (one,) = found((span("checkpoint", 12, 14),), waits)
    assert (one.waited_s, one.waited_in) == (None, None)
    (one,) = found((span("checkpoint", 10, 12), span("checkpoint", 12, 14)), waits)
    assert one.waited_s == pytest.approx(1.5)
    (one,) = found((span("checkpoint", 10, 12),), waited())
    assert one.waited_s is None
    (one,) = found((span("checkpoint", 10, 12),), None)
    assert one.waited_s is None


def test_a_checkpoint_of_several_files_is_one(found) -> None:
    files = [span("checkpoint", step + part, step + part + 0.5, step) for step in (10, 20) for part in range(3)]
    (one,) = found(tuple(files), None)
    assert (one.times, one.seconds) == (2, 3.0)


def test_nobody_waits_for_what_all_do(make_log: Callable[..., EventLog]) -> None:
    both = {rank: make_log(spans=(span("evaluation", 10 + rank, 12),)) for rank in range(2)}
    (one,) = pauses(both, waited((1, "barrier", 10.5, 12.0)), CLOCK, ranks=2, epochs=0)
    assert (one.ranks, one.seconds, one.s_per_epoch, one.waited_s) == ([], 2.0, None, None)
    assert not some_rank_goes_on(both, 2)
    assert some_rank_goes_on(both, 3)
    mixed = {0: make_log(spans=(*both[0].spans, span("checkpoint", 13, 14))), 1: both[1]}
    assert some_rank_goes_on(mixed, 2)
    assert not some_rank_goes_on({0: make_log()}, 2)
