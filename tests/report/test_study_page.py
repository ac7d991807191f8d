"""Any study has a page, figures and a table that the audit accepts; missing values are gaps, and text stays text."""

import csv
import functools
import io
import json
import math
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from report_samples import HOSTILE
from study_samples import MAKERS, hostile, interval, point, report, scaled, study
from test_page import Page

from allpull.api.study_report import write_tuning_report
from allpull.published.series import published_series
from allpull.report.html.block import Chart, Table
from allpull.report.html.chart import FIGURE, LIVE, dress, embeddable
from allpull.report.html.lines import Frame, Line, Mark
from allpull.report.html.lines import chart as line_chart
from allpull.report.printable import printable
from allpull.report.study import proposal
from allpull.report.study.answer import sentences
from allpull.report.study.lines import axes, series
from allpull.report.study.page import blocks, render, render_tuning, write, write_figures
from allpull.report.study.tuning import tuning_block
from allpull.schema.base import tag
from allpull.schema.studied import PublishedSeries
from allpull.schema.tuned import TuneResult
from allpull.study.audit.run import audit_tables


@functools.cache
def sample(name):
    return MAKERS[name]()


DRAWN = {}
"""Sections by study, kept with it, because charts take long to make."""


def sections(made):
    if id(made) not in DRAWN:
        DRAWN[id(made)] = (made, blocks(made))
    return DRAWN[id(made)][1]


def charts(made):
    return {part.slug: part for block in sections(made).values() for part in block.parts if isinstance(part, Chart)}


def tables(made):
    return [part for block in sections(made).values() for part in block.parts if isinstance(part, Table)]


def texts(made):
    """Everything that a reader of the page or of the files sees, but the charts."""
    yield from (text for block in sections(made).values() for text in (block.title, block.lead))
    for block in sections(made).values():
        for part in block.parts:
            if isinstance(part, Table):
                yield from (cell for row in part.rows for cell in row)
            elif not isinstance(part, Chart):
                yield str(part)
    yield proposal.paragraph(made)
    yield proposal.table(made)


def values(chart):
    """The rows of all data of a chart, each once."""
    stack, rows = [chart.spec], []
    while stack:
        node = stack.pop()
        if isinstance(node, list | tuple):
            rows += [one for one in node if isinstance(one, dict) and "value" in one]
            stack += node
        elif isinstance(node, dict):
            stack += node.values()
    return rows


def test_the_answer_names_the_best_size_the_efficiency_at_the_largest_and_where_it_falls_under_80_percent():
    made = report(study(scaled({}, {1: 1.0, 2: 0.95, 4: 0.79, 8: 0.61}, 500.0)))
    best, scaling = sentences(made)
    assert best == "Best: 8 ranks: an epoch takes 22.9 s (22.7 s to 23.1 s), at 2,440 ± 24 samples/s (3 repeats)."
    assert "on 8 ranks, the largest size, efficiency is 61.0 % (60.1 to 61.9 %) relative to 1 rank" in scaling.lower()
    assert "speed-up 4.88× (4.81× to 4.95×) (weak scaling)" in scaling
    assert "at least 80.0 % up to 2 ranks, and under that on 4 ranks: 79.0 % (77.8 to 80.2 %)" in scaling
    assert "the interval includes 80.0 %" in scaling


def test_the_only_epochs_of_programs_do_not_decide_which_size_is_best():
    points = scaled({}, {1: 1.0, 2: 0.95, 4: 0.79, 8: 0.61}, 500.0)
    for run in (run for one in points for run in one["runs"]):
        run["metrics"]["epoch_s"]["may_be_cut"] = True
    made = report(study(points))
    assert sentences(made)[0] == "Best: 8 ranks: 2,440 ± 24 samples/s (3 repeats)."
    leads = [block.lead or "" for block in sections(made).values()]
    assert any("so it may not be a whole one" in lead for lead in leads)
    assert not any("shortest epoch" in lead for lead in leads)


def test_a_series_whose_smallest_size_is_not_measured_is_relative_to_the_next():
    points = [point({"ranks": 1}, None), *scaled({}, {2: 1.0, 4: 0.9}, 500.0)]
    made = report(study(points))
    assert (
        "on 4 ranks, the largest size, efficiency is 90.0 % (88.6 to 91.3 %) relative to 2 ranks"
        in sentences(made)[1].lower()
    )
    assert "from 2 ranks to 4, throughput goes from 1,000 ± 10 samples/s to 1,800 ± 18" in proposal.paragraph(made)
    alone = report(study([point({"ranks": 1}, None), *scaled({}, {2: 1.0}, 500.0)]))
    assert len(sentences(alone)) == 1


def test_points_that_cannot_be_told_from_the_best_are_named_with_it():
    made = report(
        study([point({"ranks": 4, "workers": n}, rate) for n, rate in ((4, 900.0), (8, 1000.0), (16, 1005.0))])
    )
    assert "4 ranks, workers 8 cannot be told apart from it" in sentences(made)[0]


def test_weak_and_strong_scaling_have_figures_of_their_own():
    assert {"weak-scaling", "weak-speedup", "weak-efficiency"} <= set(charts(sample("full")))
    assert {"strong-scaling", "strong-speedup", "strong-efficiency"} <= set(charts(sample("strong")))


def test_published_points_are_drawn_in_the_same_units_and_relative_to_their_smallest_size():
    drawn = charts(sample("full"))
    rates = {
        row["x"]: row["value"] for row in values(drawn["weak-scaling"]) if row.get("line", "").startswith("hal_feb")
    }
    assert (rates[2], rates[64]) == (1582.04, 33080.03)
    shares = {row["x"]: row["value"] for row in values(drawn["weak-efficiency"]) if "hal_feb" in row.get("line", "")}
    assert shares[64] == pytest.approx(65.3, abs=0.05)
    times_s = {row["x"]: row["value"] for row in values(drawn["time-to-solution"]) if "hal_feb" in row.get("line", "")}
    assert times_s[64] == pytest.approx(4071.31)


def test_each_parameter_that_is_varied_alone_has_a_figure_with_published_points_of_its_kind():
    drawn = charts(sample("workers"))
    assert {"workers", "backend"} <= set(drawn)
    marks = {(row["line"], row["x"]): row["value"] for row in values(drawn["workers"]) if "x" in row}
    assert marks["gloo", 8] == marks["m100_workers (published)", 8] == 1273.0


def test_parameters_that_move_together_are_one_axis_and_ranks_are_none():
    zipped = [point({"ranks": ranks, "precision": name, "batch": batch}, ranks * 10.0 * batch)
              for ranks in (1, 2) for name, batch in (("fp32", 64), ("fp16", 128), ("bf16", 128))]  # fmt: skip
    axis, *others = axes(study(zipped))
    assert (axis.parameter, list(axis.with_it)) == ("precision", ["batch"])
    assert [line.name for line in axis.lines] == ["1 rank", "2 ranks"]
    assert [one.parameter for one in others] == []
    assert axes(study(scaled({}, {1: 1.0, 2: 0.9}, 1.0))) == []


def test_half_precision_over_full_is_a_row_per_size():
    (table,) = [one for one in tables(sample("full")) if one.caption.startswith("Throughput over that of fp32")]
    assert [row[0] for row in table.rows][:2] == ["1 rank", "2 ranks"]
    assert table.rows[0][1] == "1.76× (1.74× to 1.79×)"
    assert table.rows[-1] == ("16 ranks", "–")


def test_failed_points_have_their_reasons_and_no_number():
    made = sample("full")
    (failed,) = [one for one in tables(made) if one.caption == "Runs that did not complete"]
    assert {row[2:] for row in failed.rows} == {("timeout", "no end after 1 min")}
    for chart in charts(made).values():
        assert not [row for row in values(chart) if row.get("value") == 0]


def test_what_was_changed_to_fit_is_named_on_the_page_and_in_the_paragraph():
    made = sample("full")
    (changed,) = [one for one in tables(made) if one.caption == "Changed"]
    assert changed.rows[0] == ("data.size", "224", "32")
    assert "size 32 for 224" in proposal.paragraph(made)


def test_a_rehearsal_is_called_one_at_the_top_of_the_page_and_in_the_paragraph():
    made = sample("full")
    points = len(made.measured)
    assert not any("rehearsed" in text for text in texts(made))
    for count, share in ((points, "All points were rehearsed"), (1, f"1 of {points} points were rehearsed")):
        rehearsed = replace(made, study=made.study.model_copy(update={"rehearsed": count}))
        (answer,) = [block for title, block in sections(rehearsed).items() if title == next(iter(sections(rehearsed)))]
        assert share in str(answer.parts)
        assert share in proposal.paragraph(rehearsed)
        names = [one.name for one in series(rehearsed.study)]
        assert all(name.endswith("(rehearsed)") == (count == points) for name in names)


def test_published_learning_curves_are_under_the_measured_ones():
    rows = [row for row in values(charts(sample("full"))["top-1"]) if row.get("curve") == "published"]
    assert {row["run"] for row in rows} == {"hal_feb, 2 ranks", "hal_feb, 8 ranks", "hal_feb, 64 ranks"}
    assert max(row["value"] for row in rows if "64" in row["run"]) == pytest.approx(75.23, abs=0.01)


@pytest.mark.parametrize("name", MAKERS)
def test_the_audit_reads_points_csv_and_finds_no_slip_in_sound_numbers(name, tmp_path):
    path = tmp_path / "points.csv"
    path.write_text(proposal.table(sample(name)), encoding="utf-8")
    audited = audit_tables([path])
    assert [one.text for one in audited.findings if one.kind == "slip"] == []
    with path.open(newline="") as file:
        assert list(csv.DictReader(file).fieldnames) == list(proposal.COLUMNS)


def test_the_paragraph_has_every_number_with_unit_and_interval_and_how_it_was_measured():
    text = proposal.paragraph(report(study(scaled({}, {1: 1.0, 2: 0.95, 4: 0.79}, 500.0))))
    for part in (
        *("3 configurations on 1, 2 and 4 ranks", "Example 7742", "torch 2.13.0", "3 repeats of each"),
        *("103 to 412 steady steps per run", "from 500 ± 5 samples/s to 1,580 ± 16 samples/s"),
        *("a speed-up of 3.16× (3.11× to 3.21×)", "an efficiency of 79.0 % (77.8 to 80.2 %)"),
    ):
        assert part in text


def test_hostile_text_makes_no_formula_no_row_and_no_file_name():
    made = hostile("=cmd|' /C calc'!A0\n;gpus=9")
    rows = list(csv.DictReader(io.StringIO(proposal.table(made))))
    assert len(rows) == len(made.measured)
    assert not [cell for row in rows for cell in row.values() if cell[:1] in {"=", "+", "@", "-"}]
    assert all(re.fullmatch(r"[a-z0-9-]+", slug) for slug in charts(sample("hostile")))


def test_hostile_text_is_never_an_expression_of_a_chart():
    for chart in charts(sample("hostile")).values():
        for canvas in (LIVE, FIGURE):
            text = embeddable(dress(chart, canvas))
            assert "</script" not in text
            assert not re.search(r"[\x00-\x1f\u202e]", json.dumps(json.loads(text), ensure_ascii=False))
        for row in values(chart):
            assert not [key for key in row if "alert" in key]


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.slow
def test_the_page_fetches_nothing_and_shows_hostile_text_as_text(name):
    text = render(sample(name))
    page = Page(text)
    ids = [attrs["id"] for _, attrs in page.elements if "id" in attrs]
    assert len(ids) == len(set(ids))
    assert page.policy["default-src"] == "'none'"
    assert sum(attrs.get("type") != "application/json" for attrs, _ in page.scripts) == 1
    assert not {"b", "iframe", "img", "form"} & {tag for tag, _ in page.elements}
    assert render(sample(name)) == text
    if name == "hostile":
        assert printable(HOSTILE) in " ".join(page.texts)


@pytest.mark.slow
def test_figures_table_and_paragraph_are_written_with_the_page(tmp_path):
    made = sample("full")
    names = {path.name for path in write_figures(made, tmp_path)}
    assert {"paragraph.md", "points.csv"} <= names
    assert {f"{slug}.{kind}" for slug in charts(made) for kind in ("svg", "png", "pdf")} == names - {
        *("paragraph.md", "points.csv")
    }
    assert write(made, tmp_path / "page.html").stat().st_size > 100_000


def test_a_study_of_nothing_says_so():
    made = sample("empty")
    assert sentences(made) == ["No point has a throughput yet."]
    assert charts(made) == {}
    assert proposal.paragraph(made) == "No point of this study has a throughput yet.\n"


numbers = st.floats(min_value=1e-6, max_value=1e9)
intervals = st.none() | st.builds(
    lambda value, low, high: {"value": value, "low": low and value / low, "high": low and value * high},
    numbers,
    st.none() | st.floats(1.0, 50.0),
    st.floats(1.0, 50.0),
)
names = st.text(max_size=12) | st.sampled_from(["batch", "train.workers", "precision", "ranks", "hosts", HOSTILE])
parameters = st.dictionaries(names, st.booleans() | st.integers(-9, 99) | numbers | st.text(max_size=8), max_size=3)


@st.composite
def any_study(draw):
    points = []
    for number in range(draw(st.integers(1, 8))):
        own = draw(parameters)
        ranks, hosts = draw(st.integers(1, 512)), draw(st.integers(1, 3))
        made = point({"ranks": ranks, "hosts": hosts}, draw(st.none() | numbers))
        made |= {"parameters": {**own, "ranks": ranks, "hosts": hosts}, "series": own, "id": f"{number:012x}"}
        made |= {
            key: draw(intervals) for key in ("throughput", "speedup", "efficiency", "epoch_s", "time_to_solution_s")
        }
        points.append(made | {"epoch_speedup": draw(intervals), "runs": draw(st.sampled_from([made["runs"], []]))})
    series_ = draw(st.lists(st.sampled_from(["m100_multi", "hal_feb", "m100_workers", "m100_batch"]), unique=True))
    published = [one.model_dump() for one in published_series(series_)]
    return study(points, scaling=draw(st.sampled_from(["weak", "strong", None])), published=published)


@given(any_study())
@settings(max_examples=12, deadline=None)
@pytest.mark.slow
def test_any_study_has_a_page_without_a_number_that_is_none(made):
    shown = report(made)
    for text in texts(shown):
        assert not re.search(r"\bnan\b|\binf\b|None", text), text
    drawn = charts(shown)
    slugs = [part.slug for block in sections(shown).values() for part in block.parts if isinstance(part, Chart)]
    assert len(slugs) == len(drawn)
    for chart in drawn.values():
        embeddable(dress(chart, LIVE))
        assert all(math.isfinite(row["value"]) for row in values(chart) if row.get("value") is not None)
    assert len({one.name for one in series(made)}) == len(series(made))


def test_published_points_without_numbers_are_left_out():
    bare = PublishedSeries.model_validate(published_series(["m100_multi"])[0].model_dump())
    nothing = {"images_per_s": None, "epoch_time_s": None, "train_time_s": None, "speedup": None}
    points = [one.model_copy(update=nothing) for one in bare.points]
    made = report(
        study(scaled({}, {1: 1.0, 2: 0.9}, 10.0), published=[bare.model_copy(update={"points": points}).model_dump()])
    )
    assert not [row for row in values(charts(made)["weak-scaling"]) if "published" in str(row.get("line"))]
    assert interval(1.0)["low"] < 1


def test_a_very_long_bar_is_cut_and_does_not_flatten_the_points():
    lines = [
        Line(name="a", marks=[Mark(x=1, value=100.0, low=2.0, high=9000.0, shown="")]),
        Line(name="b", marks=[Mark(x=at, value=50.0, low=45.0, high=55.0, shown="") for at in (1, 2)]),
    ]
    frame = Frame(slug="s", title="t", caption="c.", x_title="x", y_title="y")
    drawn = line_chart(frame, lines)
    rows = [row for data in drawn.spec["datasets"].values() for row in data]
    assert {row["high"] for row in rows} == {200.0, 55.0}
    assert {row["low"] for row in rows} == {25.0, 45.0}
    assert drawn.caption == "c. Bars end at 25 and 200 at most; tables have all of them."
    assert line_chart(frame, lines[1:]).caption == "c."


TRIALS = [("completed", 100.0), ("stopped", 80.0), ("completed", 140.0), ("failed", None), ("completed", 120.0)]


def tuned(**changes):
    """A tuning with four trials that have a value, of which the third is the best."""
    trials = [
        {
            "number": number,
            "parameters": {"workers": number},
            "state": state,
            "value": None if value is None else interval(value),
            "proposed_by": "bottleneck" if number else "start",
            "seconds": 10.0,
            "rank_s": 20.0,
            "run": None,
            "reason": "out of memory" if state == "failed" else None,
        }
        for number, (state, value) in enumerate(TRIALS)
    ]
    confirmation = {
        "start": [100.0, 101.0],
        "best": [139.0, None],
        "start_runs": ["a", "b"],
        "best_runs": ["c"],
        "gain": {"value": 1.38, "low": 1.2, "high": 1.5},
        "seconds": 40.0,
        "rank_s": 80.0,
    }
    plain = {
        "schema": tag("tune"),
        "name": "small",
        "title": HOSTILE,
        "directory": "studies/small/tune",
        "objective": "throughput",
        "unit": "samples/s",
        "better": "higher",
        "space": [{"name": "workers", "values": [0, 1, 2, 3, 4], "affects": ["input"]}],
        "configurations": 5,
        "trials": trials,
        "start": {"workers": 0},
        "bottleneck": "input",
        "best": {"workers": 2},
        "gain_in_search": 1.4,
        "confirmation": confirmation,
        "seconds": 90.0,
        "rank_s": 180.0,
        "ended": "space",
        "best_toml": None,
        "command": ["allpull", "run", "--", "train.py", "--workers", "2"],
        "notes": [],
        **changes,
    }
    return TuneResult.model_validate(plain)


def test_a_tuning_is_drawn_with_its_best_so_far_and_its_fresh_runs():
    made = tuning_block(tuned())
    assert made.lead.startswith("The best is 1.38× (1.20× to 1.50×) as good as the start")
    (drawn,) = [part for part in made.parts if isinstance(part, Chart)]
    rows = [row for data in drawn.spec["datasets"].values() for row in data]
    best = sorted((row["trial"], row["value"]) for row in rows if row["kind"] == "best so far")
    assert best == [(0, 100), (1, 100), (2, 140), (3, 140), (4, 140)]
    assert {(row["trial"], row["value"]) for row in rows if row["kind"] == "ended early"} == {(1, 80)}
    trials, fresh = [part for part in made.parts if isinstance(part, Table)]
    assert trials.marked == {2}
    assert trials.rows[3][1] == "neighbour of the best; failed: out of memory"
    assert [list(row) for row in fresh.rows] == [["start", "100", "101"], ["best", "139", "–"]]


def test_a_tuning_without_a_confirmed_best_still_has_a_page(tmp_path):
    for result in (tuned(trials=[], best=None, confirmation=None, command=None, bottleneck=None), tuned()):
        Page(render_tuning(result))
    folder = tmp_path / "tune"
    folder.mkdir()
    (folder / "tune.json").write_text(tuned().model_dump_json(by_alias=True))
    page, *figures = write_tuning_report(tmp_path, tmp_path / "report.html", tmp_path / "figures")
    assert page.is_file()
    assert {path.name for path in figures} == {"tuning.png", "tuning.svg", "tuning.pdf"}
    assert write_tuning_report(tmp_path / "figures", tmp_path / "none.html") is None
