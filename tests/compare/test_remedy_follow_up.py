"""The predicted speed-up of a remedy, compared with the measured one."""

from __future__ import annotations

import shutil
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from allpull.compare.remedy_follow_up import MOST, appeared, follow_up, kept
from allpull.rundir import derived, layout
from allpull.rundir.derived import cache_explanation, cached_explanation
from allpull.rundir.read.run import RunData, read_run
from allpull.schema.base import tag
from allpull.schema.compared import Difference, Kept, RemedyFollowUp
from allpull.schema.explained import ExplainResult
from allpull.schema.results import Interval

SPEEDUP = Interval(value=1.20, low=1.17, high=1.23)


def finding(
    rule: str, gain: float, /, *, ranks: Sequence[int] = (), loss_s: float = 0.05, **changes: Any
) -> dict[str, Any]:
    return {
        "rule": rule,
        "title": rule,
        "ranks": list(ranks),
        "hosts": [],
        "loss_s_per_step": loss_s,
        "loss_share": 0.1,
        "gain": {"value": gain, "low": gain - 0.02, "high": gain + 0.02},
        "remedy": "any words",
        "options": ["OMP_NUM_THREADS"],
        "evidence": [],
        "wrong_when": "never",
        **changes,
    }


def followed(
    before: Sequence[ExplainResult],
    after: Sequence[ExplainResult],
    speedup: Interval,
    differences: Sequence[Difference],
) -> list[RemedyFollowUp]:
    return follow_up(before, after, appeared(before, after), speedup, differences)


def explained(*findings: dict[str, Any], run: str = "run-0") -> ExplainResult:
    return ExplainResult.model_validate(
        {
            "schema": tag("explain"),
            "run": run,
            "reference": None,
            "ranks": 4,
            "hosts": 1,
            "window": {"steps": 50, "seconds": 5.0, "first_step": 5, "last_step": 54, "level": "step"},
            "efficiency": None,
            "gains": {},
            "simulation_error": 0.01,
            "clock_error_s": 0.0,
            "phases": {"mean": {}, "per_rank": {}},
            "findings": list(findings),
            "healthy": None,
            "notes": [],
        }
    )


def changed(*names: str) -> list[Difference]:
    return [Difference(fact=name, before="0", after="8", key=False) for name in names]


def test_the_one_finding_that_is_gone_is_compared_with_the_speed_up() -> None:
    before = explained(finding("input-bound", 1.21), finding("slow-rank", 1.05, ranks=[3]))
    after = explained(finding("slow-rank", 1.06, ranks=[3]), run="run-1")
    (one,) = followed([before], [after], SPEEDUP, changed("OMP_NUM_THREADS"))
    assert (one.rule, one.state, one.kept) == ("input-bound", "gone", "kept")
    assert (one.loss_s_before, one.loss_s_after) == (0.05, 0.0)
    assert one.changed == ["OMP_NUM_THREADS"]
    assert one.came == SPEEDUP


def test_a_finding_of_another_rank_is_another_finding() -> None:
    before, after = explained(finding("slow-rank", 1.2, ranks=[3])), explained(finding("slow-rank", 1.2, ranks=[5]))
    (one,) = followed([before], [after], SPEEDUP, [])
    assert (one.ranks, one.state) == ([3], "gone")


def test_two_remedies_at_once_are_both_listed_and_neither_is_judged() -> None:
    before = explained(finding("input-bound", 1.1), finding("slow-rank", 1.15, ranks=[3]))
    found = followed([before], [explained(run="run-1")], SPEEDUP, [])
    assert [one.rule for one in found] == ["slow-rank", "input-bound"]  # largest gain first
    assert {one.kept for one in found} == {"not decidable"}


def test_a_remedy_that_another_finding_hid_is_not_judged_by_what_it_gains_alone() -> None:
    """Of two late ranks the later one was mended: its price is without the other one, which still hides some of it."""
    before = explained(
        finding("slow-rank", 1.8, ranks=[1], is_hidden=True), finding("slow-rank", 1.4, ranks=[0], is_hidden=True)
    )
    after = explained(finding("slow-rank", 1.4, ranks=[0]), run="run-1")
    (one,) = followed([before], [after], SPEEDUP, [])
    assert (one.ranks, one.state, one.is_hidden, one.kept) == ([1], "gone", True, "not decidable")


def test_what_a_larger_new_finding_may_hide_is_not_called_gone_and_no_promise_is_judged_by_it() -> None:
    """60 ms of one rank were added to a healthy run; its small finding is below the noise of the longer step."""
    before = explained(finding("between-phases", 1.06, loss_s=0.0015))
    after = explained(finding("slow-rank", 1.4, ranks=[1], loss_s=0.0129), run="run-1")
    slower = Interval(value=0.68, low=0.60, high=0.78)
    (one,) = followed([before], [after], slower, [])
    assert (one.rule, one.state, one.kept) == ("between-phases", "not found", "not decidable")
    (new,) = appeared([before], [after])
    assert (new.rule, new.ranks, new.loss_s, new.gain.value) == ("slow-rank", [1], 0.0129, 1.4)
    assert not appeared([], [after])
    assert not appeared([after], [after])


def test_what_is_not_found_in_a_faster_training_is_gone_although_another_loss_is_larger() -> None:
    before = explained(finding("slow-rank", 1.2, ranks=[3], loss_s=0.01))
    after = explained(finding("network-bound", 1.3, loss_s=0.02), run="run-1")
    (one,) = followed([before], [after], SPEEDUP, [])
    assert (one.state, one.kept) == ("gone", "kept")


def test_a_promise_that_failed_is_not_judged_where_a_smaller_finding_is_new() -> None:
    before = explained(finding("input-bound", 1.4, loss_s=0.03))
    after = explained(finding("slow-rank", 1.2, ranks=[1], loss_s=0.01), run="run-1")
    (failed,) = followed([before], [after], SPEEDUP, [])
    assert (failed.state, failed.kept) == ("gone", "not decidable")
    (fulfilled,) = followed([before], [after], Interval(value=1.4, low=1.37, high=1.43), [])
    assert (fulfilled.state, fulfilled.kept) == ("gone", "kept")


def test_a_finding_that_shrank_was_worked_on_and_one_that_stayed_was_not() -> None:
    before = explained(finding("input-bound", 1.21), finding("slow-rank", 1.3, ranks=[3]))
    after = explained(finding("input-bound", 1.02, loss_s=0.01), finding("slow-rank", 1.3, ranks=[3], loss_s=0.04))
    (one,) = followed([before], [after], SPEEDUP, [])
    assert (one.rule, one.state) == ("input-bound", "smaller")


def test_without_an_explanation_of_the_runs_after_the_differences_tell() -> None:
    before = explained(
        finding("input-bound", 1.21), finding("network-bound", 1.4, options=["NCCL_SOCKET_IFNAME", "launch.interface"])
    )
    (one,) = followed([before], [], SPEEDUP, changed("OMP_NUM_THREADS", "--lr"))
    assert (one.rule, one.state, one.changed, one.kept) == ("input-bound", "not known", ["OMP_NUM_THREADS"], "kept")
    (other,) = followed([before], [], SPEEDUP, changed("launch.interface"))
    assert other.rule == "network-bound"
    assert other.kept == "less"


def test_a_finding_that_was_stored_without_options_names_no_difference() -> None:
    stored = finding("cpu-contention", 1.21, remedy="set OMP_NUM_THREADS")
    del stored["options"]
    (one,) = followed([explained(stored)], [], SPEEDUP, changed("OMP_NUM_THREADS"))
    assert (one.state, one.changed) == ("not known", [])


def test_other_words_of_a_remedy_change_no_follow_up() -> None:
    """Nothing that follows a remedy up reads its text."""
    differing = changed("OMP_NUM_THREADS", "launch.bind")
    results = [
        followed([explained(finding("cpu-contention", 1.21, remedy=text, title=text))], [], SPEEDUP, differing)
        for text in ("set OMP_NUM_THREADS", "launch.bind=cores helps", "")
    ]
    facts = [one.model_dump(exclude={"remedy", "title"}) for (one,) in results]
    assert facts[0] == facts[1] == facts[2]
    assert facts[0]["changed"] == ["OMP_NUM_THREADS"]


def test_where_nothing_tells_the_largest_are_listed() -> None:
    before = explained(*(finding("slow-rank", 1 + rank / 100, ranks=[rank]) for rank in range(9)))
    found = followed([before], [], SPEEDUP, [])
    assert [one.ranks[0] for one in found] == [8, 7, 6, 5, 4]
    assert len(found) == MOST


def test_a_finding_counts_where_most_runs_have_it_and_its_interval_is_the_widest() -> None:
    often = [explained(finding("input-bound", gain)) for gain in (1.1, 1.2, 1.3)]
    rare = explained(finding("input-bound", 1.2), finding("slow-rank", 1.5, ranks=[1]))
    (one,) = followed([*often, rare], [], SPEEDUP, [])
    assert one.promised.value == pytest.approx(1.2)
    assert (one.promised.low, one.promised.high) == (pytest.approx(1.08), pytest.approx(1.32))


def test_advice_predicts_nothing() -> None:
    advice = finding("mixed-precision", 1.5, gain=None, loss_s_per_step=None, advice=True)
    assert followed([explained(advice)], [], SPEEDUP, []) == []
    assert followed([], [], SPEEDUP, []) == []


@pytest.mark.parametrize(
    ("speedup", "verdict"),
    [
        (Interval(value=1.2, low=1.17, high=1.23), "kept"),
        (Interval(value=1.1, low=1.05, high=1.14), "less"),
        (Interval(value=1.4, low=1.30, high=1.50), "more"),
        (Interval(value=1.1, low=1.05, high=1.16), "kept"),  # the intervals touch: no wrong prediction is shown
        (Interval(value=1.1, low=None, high=None), "not decidable"),
        (Interval(value=1.6, low=0.17, high=14.85), "not decidable"),  # no change at all fits as well
        (Interval(value=1.1, low=0.98, high=1.2), "not decidable"),
        (None, "not decidable"),
    ],
)
def test_a_prediction_fails_only_where_the_intervals_do_not_overlap(speedup: Interval | None, verdict: Kept) -> None:
    assert kept(Interval(value=1.2, low=1.15, high=1.25), speedup) == verdict


def test_an_upper_bound_that_did_not_come_is_kept_where_the_measurement_can_show_it() -> None:
    at_most = Interval(value=1.3, low=1.0, high=1.3)
    assert kept(at_most, Interval(value=1.02, low=0.98, high=1.06)) == "kept"
    assert kept(at_most, Interval(value=1.6, low=0.17, high=14.85)) == "not decidable"
    assert kept(at_most, Interval(value=1.2, low=1.15, high=1.25)) == "kept"
    assert kept(at_most, Interval(value=1.5, low=1.45, high=1.55)) == "more"


# ---------------------------------------------------------------------- where it is kept


KEPT = Path(__file__).parent.parent / "runs/v1.1"


@pytest.fixture
def run(tmp_path: Path) -> RunData:
    """A real run, and beside it what `allpull explain` would keep."""
    shutil.copytree(KEPT, tmp_path / "run")
    (tmp_path / "run").chmod(0o700)  # whatever the umask of the checkout was
    data = read_run(tmp_path / "run")
    result = explained(finding("slow-rank", 1.2)).model_copy(update={"run": data.record.id})
    cache_explanation(data.directory, data.record, result)
    return data


def test_what_explain_kept_is_read(run: RunData) -> None:
    found = cached_explanation(run.directory, run.record)
    assert found is not None
    assert found.findings[0].rule == "slow-rank"


def test_nothing_kept_is_nothing_read(run: RunData) -> None:
    shutil.rmtree(run.directory / "derived")
    assert cached_explanation(run.directory, run.record) is None
    (run.directory / "derived").mkdir()
    assert cached_explanation(run.directory, run.record) is None


@pytest.mark.parametrize("name", [".", "derived", "derived/explain.json", "derived/explain.key"])
def test_what_others_could_have_written_is_neither_read_nor_replaced(run: RunData, name: str) -> None:
    path = run.directory / name
    path.chmod(path.stat().st_mode | stat.S_IWOTH)
    assert cached_explanation(run.directory, run.record) is None
    before = (run.directory / "derived/explain.json").read_text()
    cache_explanation(run.directory, run.record, explained(finding("input-bound", 1.2)))
    assert (run.directory / "derived/explain.json").read_text() == before


def test_a_cache_folder_that_is_a_link_is_neither_read_nor_written(run: RunData, tmp_path: Path) -> None:
    (run.directory / "derived").rename(tmp_path / "home")
    (run.directory / "derived").symlink_to(tmp_path / "home")
    (tmp_path / "home/explain.json").write_text("precious")
    cache_explanation(run.directory, run.record, explained(finding("input-bound", 1.2)))
    assert cached_explanation(run.directory, run.record) is None
    assert (tmp_path / "home/explain.json").read_text() == "precious"


@pytest.mark.parametrize("name", ["run.json", "steps/rank-00001.jsonl", "events/rank-00000.jsonl"])
def test_what_was_kept_of_other_records_is_not_read(run: RunData, name: str) -> None:
    path = run.directory / name
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert cached_explanation(run.directory, run.record) is None
    path.unlink()
    assert cached_explanation(run.directory, run.record) is None


def test_what_a_cut_run_gave_is_not_read_once_its_records_are_whole_again(run: RunData) -> None:
    path = run.directory / "steps/rank-00000.jsonl"
    whole = path.read_text()
    path.write_text("".join(whole.splitlines(keepends=True)[:20]))
    cache_explanation(run.directory, run.record, explained().model_copy(update={"run": run.record.id}))
    path.write_text(whole)
    assert cached_explanation(run.directory, run.record) is None


def test_what_another_allpull_kept_is_not_read(run: RunData, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(derived, "build", lambda: "0.0.1")
    assert cached_explanation(run.directory, run.record) is None


def test_a_run_that_goes_on_keeps_nothing(run: RunData) -> None:
    running = run.record.model_copy(update={"status": "running"})
    assert cached_explanation(run.directory, running) is None
    shutil.rmtree(run.directory / "derived")
    cache_explanation(run.directory, running, explained())
    assert not (run.directory / "derived").exists()


def test_what_was_explained_against_a_reference_or_of_another_run_is_not_read(run: RunData) -> None:
    for changes in ({"reference": "another", "run": run.record.id}, {"run": "another"}):
        cache_explanation(run.directory, run.record, explained().model_copy(update=changes))
        assert cached_explanation(run.directory, run.record) is None


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"schema": "allpull.show/1.1"}', '{"schema": "allpull.explain/1.1"}']
)
@pytest.mark.parametrize("name", [layout.EXPLANATION, layout.EXPLANATION_KEY])
def test_a_damaged_one_is_made_again(run: RunData, name: str, content: str) -> None:
    (run.directory / name).write_text(content)
    assert cached_explanation(run.directory, run.record) is None
