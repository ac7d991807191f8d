"""Is B different from A: false alarms are rare, planted changes are found, and nothing is decided from too little."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from allpull.analyse import statistics
from allpull.analyse.effect import CONFIDENCE, Measured, Part, effect, satterthwaite
from allpull.analyse.statistics import Floats
from allpull.compare.comparison import decide, effects
from allpull.compare.metrics import METRICS, Measures, rate
from allpull.schema.compared import Decision, Spread

THROUGHPUT = METRICS["throughput"]
STEPS = 80
RHO = 0.7  # from step to step
WITHIN = 0.03  # of a step
BETWEEN = 0.01  # of a run
FALSE_ALARMS = 0.02  # what is promised
BAD = {"faster", "slower"}


@pytest.fixture(scope="module")
def pool() -> list[Measured]:
    """1,000 identical runs: autocorrelated steps, and a node and an hour of their own for each run."""
    rng = np.random.default_rng(7)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(statistics, "ERROR_RESAMPLES", 60)  # a standard error within 10 %; quick
        return [one for one in (rate(np.full(STEPS, 64.0), times) for times in series(rng, 1000)) if one is not None]


def series(rng: np.random.Generator, runs: int) -> Floats:
    """Step times in s, shape (runs, steps): lognormal, a first-order autoregression around the run's own mean."""
    own = rng.normal(scale=BETWEEN, size=(runs, 1))
    noise = rng.normal(scale=WITHIN * math.sqrt(1 - RHO**2), size=(runs, STEPS))
    steps = np.empty((runs, STEPS))
    steps[:, 0] = rng.normal(scale=WITHIN, size=runs)
    for k in range(1, STEPS):
        steps[:, k] = RHO * steps[:, k - 1] + noise[:, k]
    times: Floats = 0.1 * np.exp(own + steps)
    return times


def drawn(pool: Sequence[Measured], sizes: tuple[int, int], rng: np.random.Generator) -> list[list[Measured]]:
    """Two sides of different runs of the pool."""
    order = rng.permutation(len(pool))[: sum(sizes)]
    return [[pool[index] for index in part] for part in (order[: sizes[0]], order[sizes[0] :])]


def slowed(side: Sequence[Measured], share: float) -> list[Measured]:
    """The same runs with steps that take so much longer."""
    return [Measured(value=one.value - math.log1p(share), error=one.error, freedom=one.freedom) for one in side]


def decisions(
    pool: Sequence[Measured], sizes: tuple[int, int], pairs: int, *, figure: Spread | None = None, slower: float = 0.0
) -> list[Decision]:
    rng = np.random.default_rng(sizes[0] * 100 + sizes[1])
    found = []
    for _ in range(pairs):
        before, after = drawn(pool, sizes, rng)
        found.append(decide(THROUGHPUT, effect(before, slowed(after, slower), figure)))
    return found


def share(found: Sequence[Decision], of: set[str]) -> float:
    return sum(one in of for one in found) / len(found)


# ---------------------------------------------------------------------- identical runs


@pytest.mark.parametrize("sizes", [(3, 3), (5, 5), (3, 8), (12, 3)])
def test_identical_groups_give_few_false_alarms(pool: list[Measured], sizes: tuple[int, int]) -> None:
    assert share(decisions(pool, sizes, 1000), BAD) < FALSE_ALARMS


def test_one_run_against_many_gives_few_false_alarms(pool: list[Measured]) -> None:
    assert share(decisions(pool, (8, 1), 1000), BAD) < FALSE_ALARMS
    assert share(decisions(pool, (3, 1), 1000), BAD) < FALSE_ALARMS


@pytest.mark.parametrize("runs", [4, 20])
def test_single_runs_with_a_stored_figure_give_few_false_alarms(pool: list[Measured], runs: int) -> None:
    rng = np.random.default_rng(runs)
    found: list[Decision] = []
    for _ in range(1000):  # each time a figure of its own: one that is too low by chance is low for ever
        kept, pair = drawn(pool, (runs, 2), rng)
        found.append(decide(THROUGHPUT, effect(pair[:1], pair[1:], effect(kept, pair[:1]).spread)))
    assert share(found, BAD) < FALSE_ALARMS


def test_a_known_figure_is_held_whatever_the_number_of_runs(pool: list[Measured]) -> None:
    # 0.0125: the spread of whole runs here, √(0.01² + what varies within one run)
    assert share(decisions(pool, (1, 1), 1000, figure=Spread(sd=0.0125, freedom=None)), BAD) < FALSE_ALARMS
    assert share(decisions(pool, (3, 3), 1000, figure=Spread(sd=0.0125, freedom=None)), BAD) < FALSE_ALARMS


@pytest.mark.parametrize(("sizes", "kept"), [((1, 1), 20), ((3, 3), 0), ((8, 1), 0), ((3, 3), 20)])
def test_disturbed_runs_do_not_cry_wolf(sizes: tuple[int, int], kept: int) -> None:
    """One run in a hundred is disturbed and slower, by ten times the usual spread on average."""
    rng = np.random.default_rng(kept + sizes[0])
    alarms = 0
    for _ in range(1000):
        slow = rng.exponential(0.1, sum(sizes) + kept) * (rng.random(sum(sizes) + kept) < 0.01)
        runs = [Measured(value=x, error=0.001) for x in rng.normal(scale=0.01, size=slow.size) - slow]
        before, after, rest = runs[: sizes[0]], runs[sizes[0] : sum(sizes)], runs[sum(sizes) :]
        found = effect(before, after, effect(rest, before).spread if rest else None)
        alarms += decide(THROUGHPUT, found) in BAD
    assert alarms / 1000 < FALSE_ALARMS


def test_steps_alone_would_cry_wolf(pool: list[Measured]) -> None:
    """The twin of the tests above: what varies within runs does not tell identical runs from different ones."""
    rng = np.random.default_rng(3)
    alarms = 0
    for _ in range(500):
        bounds = effect(*drawn(pool, (1, 1), rng)).within_bounds()
        assert bounds is not None
        alarms += not bounds[0] <= 0 <= bounds[1]
    assert alarms / 500 > 0.05


def test_the_interval_holds_the_truth_as_often_as_it_says(pool: list[Measured]) -> None:
    rng = np.random.default_rng(11)
    held = 0
    for _ in range(1000):
        before, after = drawn(pool, (5, 5), rng)
        bounds = effect(before, slowed(after, 0.05)).bounds()
        assert bounds is not None
        held += bounds[0] <= -math.log1p(0.05) <= bounds[1]
    assert held / 1000 >= CONFIDENCE - 0.007  # three standard errors of such a share


# ---------------------------------------------------------------------- planted changes


def test_a_planted_slow_down_is_found(pool: list[Measured]) -> None:
    """5 % at a spread between runs of 1.25 %: five runs a side suffice, three do at 10 %; never the wrong way."""
    found = decisions(pool, (5, 5), 600, slower=0.05)
    assert share(found, {"slower"}) > 0.9
    assert "faster" not in found
    assert share(decisions(pool, (3, 3), 600, slower=0.10), {"slower"}) > 0.85
    assert share(decisions(pool, (1, 1), 600, slower=0.12, figure=Spread(sd=0.0125, freedom=None)), {"slower"}) > 0.9
    assert share(decisions(pool, (5, 5), 600, slower=-0.05), {"faster"}) > 0.9


@pytest.mark.parametrize("size", [5, 8])
def test_the_smallest_showable_change_is_shown_four_times_in_five(pool: list[Measured], size: int) -> None:
    rng = np.random.default_rng(5)
    smallest = np.median([effect(*drawn(pool, (size, size), rng)).smallest or math.nan for _ in range(200)])
    shown = share(decisions(pool, (size, size), 800, slower=math.expm1(smallest)), {"slower"})
    assert 0.7 < shown < 0.9


# ---------------------------------------------------------------------- the arithmetic


def test_welch_on_students_sleep_data() -> None:
    """R, ?t.test: t = -1.8608, df = 17.776, 95 % interval -3.3654832 to 0.2054832 (Student 1908)."""
    one = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
    two = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]
    found = effect([Measured(value=x) for x in two], [Measured(value=x) for x in one])
    assert found.error is not None
    assert found.value / found.error == pytest.approx(-1.8608, abs=5e-5)
    assert found.freedom == pytest.approx(17.776, abs=5e-4)
    assert found.bounds(0.95) == pytest.approx((-3.3654832, 0.2054832), abs=1e-6)


def test_a_side_of_one_run_gets_the_spread_of_the_other() -> None:
    """The prediction interval of one more observation: s √(1 + 1/n), n − 1 degrees of freedom."""
    many = [Measured(value=x) for x in (1.0, 2.0, 3.0, 4.0)]
    found = effect(many, [Measured(value=9.0)])
    assert found.basis == "one side"
    assert found.value == 6.5
    assert found.error == pytest.approx(math.sqrt(5 / 3) * math.sqrt(1 + 1 / 4))
    assert found.freedom == 3


def test_a_stored_figure_and_what_varies_within_add_up() -> None:
    one, other = Measured(value=0.0, error=0.003, freedom=30), Measured(value=0.0, error=0.004, freedom=40)
    found = effect([one], [other], Spread(sd=0.01, freedom=None))
    assert found.basis == "stored"
    assert found.error == pytest.approx(math.sqrt(2 * 0.01**2 + 0.003**2 + 0.004**2))


def test_freedom_is_satterthwaites() -> None:
    assert satterthwaite([Part(variance=1, freedom=5), Part(variance=1, freedom=5)]) == (2, pytest.approx(10))
    assert satterthwaite([Part(variance=1, freedom=5), Part(variance=0, freedom=5)]) == (1, pytest.approx(5))
    assert satterthwaite([Part(variance=1, freedom=math.inf)]) == (1, math.inf)


# ---------------------------------------------------------------------- too little to decide on


@pytest.mark.parametrize("sizes", [(1, 1), (2, 1), (2, 2)])
def test_too_few_runs_decide_nothing_however_large_the_change(sizes: tuple[int, int], pool: list[Measured]) -> None:
    before, after = drawn(pool, sizes, np.random.default_rng(1))
    found = effect(before, slowed(after, 0.5))
    assert decide(THROUGHPUT, found) == "not decidable"
    assert (found.bounds(), found.smallest, found.basis) == (None, None, "unknown")
    assert found.within_bounds() is not None  # it is told, and it decides nothing


def test_runs_too_short_to_tell_their_own_spread_decide_nothing_alone() -> None:
    short = rate(np.full(5, 64.0), np.full(5, 0.1))
    assert short is not None
    assert short.error is None
    assert effect([short], [short], Spread(sd=0.01, freedom=None)).bounds() is None
    assert effect([short] * 3, [short] * 3).bounds() == (0, 0)  # as repeats they count


def test_runs_that_agree_by_chance_are_no_proof() -> None:
    """Three runs within 1 ppm of each other, whose steps say 1 %: the steps are believed."""
    before = [Measured(value=1e-6 * k, error=0.01, freedom=50) for k in range(3)]
    after = [Measured(value=0.02 + 1e-6 * k, error=0.01, freedom=50) for k in range(3)]
    found = effect(before, after)
    assert found.error == pytest.approx(0.01 * math.sqrt(2 / 3))
    assert decide(THROUGHPUT, found) == "no difference shown"


def test_a_stored_figure_that_the_runs_belie_is_not_used() -> None:
    before = [Measured(value=x, error=0.001) for x in (0.00, 0.03, -0.03)]
    after = [Measured(value=x, error=0.001) for x in (0.02, 0.05, -0.01)]
    figure = Spread(sd=0.002, freedom=None)
    found = effect(before, after, figure)
    assert (found.contradicted, found.basis) == (True, "both sides")
    assert decide(THROUGHPUT, found) == "no difference shown"
    assert decide(THROUGHPUT, effect(before[:1], after[:1], figure)) == "faster"  # nothing belies it there


def test_one_seed_says_nothing_of_another() -> None:
    """The same seed trains the same network: equal accuracies are no evidence that nothing varies."""
    sides = [
        [Measures(values={"test_top1": Measured(value=top1, error=0.0)}, steps=9, throughput=None)] * 3
        for top1 in (0.97, 0.96)
    ]
    found = effects(*sides, None)["test_top1"]
    assert decide(METRICS["test_top1"], found) == "not decidable"


def test_exact_times_are_certain() -> None:
    """A rehearsal without noise varies in nothing, and a change of it is one."""
    before, after = (rate(np.full(40, 64.0), np.full(40, time_s)) for time_s in (0.1, 0.105))
    assert before is not None
    assert after is not None
    assert decide(THROUGHPUT, effect([before] * 3, [after] * 3)) == "slower"
    assert decide(THROUGHPUT, effect([before] * 3, [before] * 4)) == "no difference shown"


@pytest.mark.parametrize(
    ("metric", "more", "less"),
    [
        ("throughput", "faster", "slower"),
        ("step_s", "slower", "faster"),
        ("phases.wait", "worse", "better"),
        ("efficiency.parallel", "better", "worse"),
        ("test_top1", "better", "worse"),
    ],
)
def test_what_more_of_a_metric_is(metric: str, more: Decision, less: Decision) -> None:
    low, high = ([Measured(value=base + x, error=0.0) for x in (-1e-4, 0, 1e-4)] for base in (0.5, 0.6))
    assert decide(METRICS[metric], effect(low, high)) == more
    assert decide(METRICS[metric], effect(high, low)) == less


# ---------------------------------------------------------------------- what must always hold

VALUES = st.lists(st.floats(-1, 1), min_size=1, max_size=6)
ERRORS = st.floats(0, 0.1)
FIGURES = st.none() | st.builds(Spread, sd=st.floats(0.001, 0.1), freedom=st.none() | st.floats(2, 50))


@given(one=VALUES, other=VALUES, error=ERRORS, figure=FIGURES, shift=st.floats(-5, 5), data=st.data())
def test_sides_order_and_units_change_nothing_else(
    one: list[float], other: list[float], error: float, figure: Spread | None, shift: float, data: st.DataObject
) -> None:
    before, after = ([Measured(value=x, error=error, freedom=20) for x in side] for side in (one, other))
    found, swapped = effect(before, after, figure), effect(after, before, figure)
    assert swapped.value == pytest.approx(-found.value, abs=1e-12)
    assert same(swapped.error, found.error)
    assert same(swapped.freedom, found.freedom)
    shuffled = effect(data.draw(st.permutations(before)), after, figure)
    assert same(shuffled.error, found.error)
    shifted = ([Measured(value=x.value + shift, error=error, freedom=20) for x in side] for side in (before, after))
    moved = effect(*shifted, figure)
    assert moved.value == pytest.approx(found.value, abs=1e-9)
    assert same(moved.error, found.error)  # a unit is a shift of a logarithm


def same(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-7)  # values up to 5 have no more digits to spare


@given(one=VALUES, other=VALUES, error=ERRORS, figure=FIGURES)
def test_bounds_hold_the_value_and_no_less_than_varies_within(
    one: list[float], other: list[float], error: float, figure: Spread | None
) -> None:
    found = effect(*([Measured(value=x, error=error, freedom=20) for x in side] for side in (one, other)), figure)
    bounds, within = found.bounds(), found.within_bounds()
    assert within is not None
    if bounds is None:
        assert found.basis == "unknown"
        return
    slack = 1e-12
    assert bounds[0] <= found.value <= bounds[1]
    assert bounds[0] <= within[0] + slack
    assert bounds[1] >= within[1] - slack
    assert found.smallest is not None
    assert found.smallest >= (bounds[1] - bounds[0]) / 2 - slack
