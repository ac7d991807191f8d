"""Windows of a profiler become one series of steps where ranks begin the next as they ended the last."""

from __future__ import annotations

import numpy as np
import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from allpull.replay.recording.joined_windows import edges, joined_windows

STEP, LIMIT = 100, 5


def joined(
    windows: list[list[tuple[int, ...]]], parted: tuple[int, ...] = (), limit: int = LIMIT
) -> tuple[list[int], list[int]]:
    """Rows and cut time; ``windows``: of each step when its ranks begin it, all of which take 100."""
    begins = np.array([begin for window in windows for begin in window])
    steps, ranks = begins.shape
    rank, step = np.divmod(np.arange(steps * ranks), steps)
    begin = begins.T.ravel()
    records = pl.DataFrame({"rank": rank, "step": 10 * step, "begin_ns": begin, "end_ns": begin + STEP})
    bounds = np.cumsum([0, *(len(window) for window in windows)]).tolist()
    series = [slice(first, end) for first, end in zip(bounds[:-1], bounds[1:], strict=True)]
    numbers, at = 10 * np.arange(steps), np.arange(steps)
    edge = edges(records, numbers, np.ones(steps, dtype=np.bool_), limit)
    begins = np.isin(at, [one.start for one in series])
    rows, cut = joined_windows(series, edge, begins, np.isin(at, parted))
    return rows.tolist(), cut.tolist()


def window(begin: int, steps: int, late: int = 0) -> list[tuple[int, ...]]:
    return [(begin + STEP * step, begin + STEP * step + late) for step in range(steps)]


def test_what_lies_between_windows_is_cut_out_of_the_moments_of_all_ranks() -> None:
    assert joined([[(0, 2), (100, 102)], [(700, 703), (800, 803)]]) == ([0, 1, 2, 3], [0, 0, 500, 500])


def test_steps_that_do_not_continue_what_was_recorded_are_left_out() -> None:
    """One rank begins the window late: it began to record late."""
    assert joined([[(0, 0), (100, 100)], [(700, 760), (800, 803), (900, 903)]]) == ([0, 1, 3, 4], [0, 0, 600, 600])
    assert joined([[(0, 0), (100, 100), (200, 260)], [(700, 700), (800, 800)]]) == ([0, 1, 3, 4], [0, 0, 500, 500])


def test_a_window_that_nothing_fits_is_left_out() -> None:
    far = [(700, 760), (800, 860)]
    assert joined([[(0, 0), (100, 100)], far, [(2000, 2000)]]) == ([0, 1, 4], [0, 0, 1800])


def test_a_first_window_that_fits_none_does_not_leave_out_the_others() -> None:
    """As where one rank begins to record late: the windows after it are joined without it."""
    windows = [window(0, 3, late=60), *(window(1000 * place, 10) for place in range(1, 10))]
    rows, _ = joined(windows)
    assert rows == list(range(3, 93))


def test_no_window_is_joined_that_leaves_out_more_than_it_adds() -> None:
    """The second one fits the fourth step of the first alone."""
    first = [*window(0, 3), (300, 300), *((400 + STEP * step, 460 + STEP * step) for step in range(16))]
    rows, _ = joined([first, [(5000, 5000)]])
    assert rows == list(range(20))


def test_nothing_is_joined_where_buckets_changed() -> None:
    """Of both parts the longer one is taken, the later of two as long."""
    windows = [[(0, 0)], [(500, 500), (600, 600)], [(1000, 1000)]]
    assert joined(windows, parted=(1,)) == ([1, 2, 3], [0, 0, 300])
    assert joined(windows, parted=(3,)) == ([0, 1, 2], [0, 400, 400])
    assert joined([[(0, 0)], [(500, 500)]], parted=(1,)) == ([1], [0])


@given(
    st.lists(st.lists(st.tuples(*[st.integers(0, 9)] * 3), min_size=1, max_size=4), min_size=1, max_size=6),
    st.lists(st.integers(0, 10_000), min_size=6, max_size=6),
)
def test_no_rank_begins_before_it_ended_the_step_before(
    offsets: list[list[tuple[int, ...]]], pauses: list[int]
) -> None:
    """And in what is joined each step begins within the limit of the end of the one before, on all ranks."""
    at, windows = 0, []
    for window, pause in zip(offsets, pauses, strict=False):
        at += pause
        windows.append([tuple(at + 110 * place + one for one in step) for place, step in enumerate(window)])
        at += 110 * len(window)
    rows, cuts = joined(windows)
    begins = np.array([begin for window in windows for begin in window])[rows] - np.array(cuts)[:, None]
    firsts = np.cumsum([len(window) for window in windows])[:-1]
    inner = ~np.isin(rows[1:], firsts) & (np.diff(rows) == 1)
    apart = begins[1:] - begins[:-1] - STEP
    assert rows == sorted(set(rows))
    assert len(rows) >= max(len(window) for window in windows)
    assert ((apart >= 0) & (apart <= LIMIT))[~inner].all()
