"""What each section says and draws: facts of the report, and nothing where nothing was measured."""

import itertools
import json
import shlex

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from report_samples import HOSTILE, detail, empty, host, hostile, metrics, one, report, three

from allpull.errors import BadInput
from allpull.report.colours import PHASES, RUNS, in_order
from allpull.report.html.block import Block, Chart, Commands, Notice, Points, Table, Terms, Text, Tiles
from allpull.report.html.chart import FIGURE, LIVE, dress, embeddable
from allpull.report.html.page_limits import MAX_LINES, MAX_RUNS, bounded, evenly
from allpull.report.sections import SECTIONS, blocks, names
from allpull.report.sections.steps import distribution
from allpull.report.wording import labels, subject
from allpull.schema.results import Interval


def charts(made):
    return {part.slug: part for block in blocks(made).values() for part in block.parts if isinstance(part, Chart)}


def rows(chart):
    """All tables of rows that a chart draws; layers may share one."""
    return list(chart.spec["datasets"].values())


def parts(block, kind):
    return [part for part in block.parts if isinstance(part, kind)]


def text_of(block):
    return " ".join([block.lead, *(part.text for part in parts(block, Text))])


def test_runs_of_other_programs_are_tables_of_their_own():
    """The rest of the page is about one program; what is not compared has no speed-up there."""
    made = three().model_copy(
        update={
            "program": "big.py",
            "others": [one().model_copy(update={"program": "small.py"})],
            "without_steps": one().details,
        }
    )
    block = blocks(bounded(made))["programs"]
    assert [table.caption for table in parts(block, Table)] == ["small.py: the run"]
    assert parts(block, Points)[-1].items == [f"{one().details[0].metrics.run}: completed"]
    assert "big.py" in block.lead
    assert "programs" not in blocks(three())


def test_runs_that_could_not_be_read_are_named_on_the_page():
    block = blocks(bounded(three().model_copy(update={"damaged": ["runs/a/run.json: empty"]})))["programs"]
    assert parts(block, Points)[-1].items == ["runs/a/run.json: empty"]


# --- the table of sections -------------------------------------------------------------------------------------


def test_sections_come_in_reading_order_and_each_loads():
    first = [
        "summary",
        "findings",
        "runs",
        "losses",
        "pop",
        "epochs",
        "throughput",
        "phases",
        "timeline",
        "lateness",
        "steps",
        "usage",
        "operators",
        "learning",
    ]
    assert names()[:17] == [*first, "programs", "environment", "method"]
    assert all(callable(SECTIONS.load(name)) for name in names())


@pytest.mark.parametrize("make", [one, three, empty, hostile])
def test_every_section_has_a_title_and_a_sentence_on_any_report(make):
    for block in blocks(make()).values():
        assert block.title
        assert block.lead.strip()


# --- summary ---------------------------------------------------------------------------------------------------


def test_the_summary_leads_with_the_first_words_and_tabulates_every_run():
    made = three()
    assert blocks(made)["summary"].lead == made.words[0]
    (table,) = parts(blocks(made)["runs"], Table)
    assert [row[0] for row in table.rows] == ["1 rank (reference)", "2 ranks", "4 ranks"]
    assert table.marked == {0}
    for row, run in zip(table.rows, made.show.runs, strict=True):
        assert row[3] == f"{run.speedup:.2f}×"
        assert row[4] == f"{100 * run.efficiency:.1f} %"
        assert row[5] == f"{100 * run.accuracy:.1f} %"
        assert row[1].split(" ± ")[0].replace(",", "") == f"{run.throughput.value:.0f}"


def test_a_single_run_has_no_speed_up_anywhere():
    block = blocks(one())["summary"]
    assert [tile.label for part in parts(block, Tiles) for tile in part.tiles] == [
        "samples per second",
        "median step",
        "test accuracy",
    ]
    assert not [part for block in blocks(one()).values() for part in parts(block, Table) if "Speed-up" in part.columns]
    assert "throughput" not in blocks(one())


def test_an_interval_around_one_shows_no_speed_up():
    made = three()
    interval = Interval(value=0.8, low=0.5, high=1.13)
    last = made.show.runs[-1].model_copy(update={"speedup": 0.8, "speedup_interval": interval})
    made = made.model_copy(update={"show": made.show.model_copy(update={"runs": [*made.show.runs[:-1], last]})})
    first = parts(blocks(made)["summary"], Tiles)[0].tiles[0]
    assert (first.value, first.label) == ("none shown", "speed-up on 4 ranks")
    assert first.detail == "0.80×, 95 % interval 0.50× to 1.13×"
    assert blocks(made)["throughput"].lead.startswith("No speed-up is shown")


def test_caveats_stand_beside_the_headline_and_nowhere_else():
    made = three()
    made = made.model_copy(
        update={"words": [*made.words, "It was busy."], "caveats": ["It was busy.", "It was short."]}
    )
    first = blocks(made)["summary"].parts[0]
    assert isinstance(first, Notice)
    assert first.items == ["It was busy.", "It was short."]
    assert "It was busy." not in parts(blocks(made)["runs"], Points)[0].items


def test_names_of_runs_are_shown_where_they_differ():
    made = report([metrics(1, name="before"), metrics(2, name="after")])
    (table,) = parts(blocks(made)["runs"], Table)
    assert [row[1] for row in table.rows] == ["before", "after"]
    assert "Name" not in parts(blocks(three())["runs"], Table)[0].columns


def test_commands_can_be_pasted_into_a_shell():
    run = metrics(1, directory="my runs/a")
    (commands,) = parts(
        blocks(report([run], details=[detail(run, command=["python", "my train.py"])]))["runs"], Commands
    )
    lines = [shlex.split(one.line) for one in commands.commands]
    assert lines[0] == ["python", "my train.py"]
    assert lines[1] == ["allpull", "compare", "my runs/a", "my runs/latest"]
    assert lines[2] == ["allpull", "show", "my runs/a", "--perfetto", "my runs/a/derived/timeline.json.gz"]


def test_notes_gaps_and_failures_are_all_shown():
    block = blocks(empty())["summary"]
    both = Block(title="", lead="", parts=[*block.parts, *blocks(empty())["runs"].parts])
    items = [item for notice in parts(both, Notice) for item in notice.items]
    assert "1 rank: rank 1 left no steps" in items
    assert "2 ranks: rank 1 on node0 was ended by SIGKILL" in items
    assert any("shared one machine" in item for item in items)
    assert any(notice.bad for notice in parts(block, Notice))


def test_what_was_recorded_over_time_is_drawn_and_nothing_else():
    """One unit for a whole axis, and one time axis for all charts."""
    series = [
        {"name": "step", "unit": "s", "times_s": [0.1, 0.2], "values": [0.1, 0.2]},
        {"name": "memory", "unit": "bytes", "times_s": [-1.0, 4.0], "values": [2e9, None]},
    ]
    block = blocks(report([metrics(1)], usage=series))["usage"]
    drawn = {chart.slug: chart for chart in parts(block, Chart)}
    assert list(drawn) == ["step-time", "memory"]
    assert [row["value"] for row in rows(drawn["step-time"])[0]] == [100.0, 200.0]
    assert [row["value"] for row in rows(drawn["memory"])[0]] == [2.0]
    assert all('"domain": [-1.0, 4.0]' in json.dumps(chart.spec) for chart in drawn.values())
    assert "usage" not in blocks(three())


def test_operators_of_a_profiler_window_are_listed_per_step():
    conv = {"name": HOSTILE, "kind": "operator", "calls": 6, "self_s": 0.012}
    summary = {"rank": 0, "first_step": 5, "steps": 3, "total_s": {"operator": 0.024}, "operators": [conv]}
    block = blocks(report([metrics(1)], operators=summary))["operators"]
    (table,) = parts(block, Table)
    assert table.rows[0][1:] == ("2", "4 ms", "50.0 %")
    assert "operators" not in blocks(three())


# --- epochs ----------------------------------------------------------------------------------------------------


def idle(*shares):
    epochs = [{"epoch": epoch, "share": share} for epoch, share in enumerate(shares)]
    mean = sum(shares) / len(shares)
    return {"share": mean, "source": "device times", "known": 1.0, "epochs": epochs, "reason": None}


def test_the_idle_share_of_accelerators_is_stated_and_drawn_by_epoch():
    made = report([metrics(1, idle=idle(0.5, 0.4, 0.3))])
    block = blocks(made)["epochs"]
    assert parts(block, Points)[0].items == [
        "Accelerators are idle at least 40.0 % of an epoch, by the times of steps on the device."
    ]
    assert [row["value"] for row in rows(charts(made)["idle"])[0]] == pytest.approx([50, 40, 30])
    two = blocks(report([metrics(1, idle=idle(0.5)), metrics(2, idle=idle(0.2, 0.4))]))["epochs"]
    assert [row[1:3] for row in parts(two, Table)[0].rows] == [("50.0 %", "–"), ("30.0 %", "20.0 % to 40.0 %")]


def test_reading_is_listed_by_window_per_sample_and_from_storage():
    window = {"name": "training", "seconds": 10.0, "read_bytes": 1.12e9, "reads": 12_400, "samples": 10_000}
    window |= {"read_bytes_per_s": 1.12e8, "reads_per_s": 1240.0, "storage_read_bytes_per_s": 1e5}
    run = metrics(2)
    table = parts(blocks(report([{**run, "io": {**run["io"], "windows": [window]}}]))["epochs"], Table)[0]
    assert table.columns == ["Window", "Read", "Reads/s", "From storage", "Per sample", "Reads per sample"]
    assert table.rows == [["training, 10 s", "112 MB/s", "1,240", "100 kB/s", "112 kB", "1.24"]]
    assert "epochs" not in blocks(report([run]))


# --- throughput ------------------------------------------------------------------------------------------------


def test_the_ideal_line_goes_through_the_reference_in_proportion_to_ranks():
    made = three()
    ideal = next(part for part in rows(charts(made)["throughput"]) if part and "run" not in part[0])
    reference = made.show.runs[0].throughput.value
    assert [point["ranks"] for point in ideal] == [1, 4]
    assert [point["value"] for point in ideal] == pytest.approx([reference, 4 * reference])


def test_each_precision_has_an_ideal_line_of_its_own():
    runs = [metrics(ranks, precision=name) for name in ("fp32", "bf16") for ranks in (1, 4)]
    runs = [
        {**run, "run": f"{run['run']}-{run['precision']}", "reference": f"{metrics(1)['run']}-{run['precision']}"}
        for run in runs
    ]
    ideal = next(part for part in rows(charts(report(runs))["throughput"]) if part and "run" not in part[0])
    assert [(point["precision"], point["ranks"]) for point in ideal] == [
        *(("fp32", 1), ("fp32", 4)),
        *(("bf16", 1), ("bf16", 4)),
    ]


def test_points_and_bars_are_the_measured_intervals():
    made = three()
    measured = next(part for part in rows(charts(made)["throughput"]) if len(part) == 3)
    for point, run in zip(measured, made.show.runs, strict=True):
        assert (point["ranks"], point["value"]) == (run.ranks, run.throughput.value)
        assert (point["low"], point["high"]) == (run.throughput.low, run.throughput.high)


@pytest.mark.parametrize("make", [one, empty])
def test_with_nothing_to_compare_there_is_no_throughput_chart(make):
    assert "throughput" not in blocks(make())


def test_axes_are_logarithmic_only_over_many_doublings():
    many = charts(report([metrics(ranks) for ranks in (1, 4, 64)]))["throughput"]
    assert '"type": "log"' in json.dumps(many.spec)
    assert '"type": "log"' not in json.dumps(charts(three())["throughput"].spec)


# --- phases ----------------------------------------------------------------------------------------------------


def test_bars_sum_to_the_measured_phases():
    made = three()
    (drawn,) = rows(charts(made)["phases"])
    for label, run in zip(labels(made.show.runs), made.show.runs, strict=True):
        bar_ms = sum(row["time"] for row in drawn if row["run"] == label)
        assert bar_ms == pytest.approx(1e3 * sum(value for value in run.phases.values() if value is not None))


def test_a_phase_that_was_not_measured_is_named_and_never_drawn():
    made = three()
    (drawn,) = rows(charts(made)["phases"])
    assert {row["phase"] for row in drawn if row["run"] == "1 rank"} == {
        "input",
        "forward",
        "backward",
        "optimizer",
        "other",
    }
    said = text_of(blocks(made)["phases"])
    assert "copy, evaluation, checkpoint and host in any run" in said
    assert "wait and transfer on 1 rank" in said
    table = parts(blocks(made)["phases"], Table)[0]
    assert next(row for row in table.rows if row[0] == "wait")[2] == "–"


def test_a_phase_that_took_no_time_is_not_called_unmeasured():
    run = metrics(1, phases={"input": 0.0, "forward": 0.1})
    block = blocks(report([run]))["phases"]
    assert "input" not in text_of(block).split("Not measured")[1].split(".")[0]
    assert parts(block, Table)[0].rows[0][0] == "input"
    assert {row["phase"] for row in rows(parts(block, Chart)[0])[0]} == {"forward"}


def test_phases_of_other_names_count_as_other_in_the_bar_and_stand_by_name_in_the_table():
    run = metrics(1, phases={"forward": 0.1, "other": 0.02, "augment": 0.03, "mix": 0.01})
    block = blocks(report([run]))["phases"]
    (drawn,) = rows(parts(block, Chart)[0])
    assert {row["phase"]: row["time"] for row in drawn} == pytest.approx({"forward": 100.0, "other": 60.0})
    assert [row[0] for row in parts(block, Table)[0].rows] == ["forward", "other", "augment", "mix"]


def test_the_closure_error_stated_is_the_worst():
    runs = [metrics(1, closure_error=0.001), metrics(2, closure_error=0.04)]
    assert "within 4.0 %" in text_of(blocks(report(runs))["phases"])
    runs = [metrics(1, closure_error=0.0)]
    assert "add up to the step exactly" in text_of(blocks(report(runs))["phases"])
    runs = [metrics(1, closure_error=None)]
    assert "not measured" in text_of(blocks(report(runs))["phases"])


@given(st.permutations([*PHASES, "mine"]))
def test_order_of_phases_does_not_depend_on_the_order_recorded(given_order):
    assert in_order(given_order) == [*PHASES, "mine"]


def _lab(colour, matrix):
    """CIE L*a*b* (D65) of an sRGB colour seen through ``matrix`` on linear RGB."""
    rgb = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    linear = matrix @ np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    to_xyz = np.array([[0.4125, 0.3576, 0.1804], [0.2127, 0.7152, 0.0722], [0.0193, 0.1192, 0.9503]])
    xyz = to_xyz @ np.clip(linear, 0, 1) / np.array([0.9505, 1.0, 1.0888])
    f = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


# Machado, Oliveira and Fernandes (2009), table 1, severity 1.0.
VISION = {
    "full": np.eye(3),
    "protanopia": np.array([[0.1523, 1.0526, -0.2049], [0.1145, 0.7863, 0.0992], [-0.0039, -0.0481, 1.0520]]),
    "deuteranopia": np.array([[0.3674, 0.8606, -0.2280], [0.2801, 0.6725, 0.0474], [-0.0118, 0.0429, 0.9689]]),
    "tritanopia": np.array([[1.2555, -0.0767, -0.1788], [-0.0784, 0.9308, 0.1476], [0.0047, 0.6914, 0.3039]]),
}


@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize("palette", [tuple(PHASES.values()), RUNS], ids=["phases", "runs"])
def test_colours_stay_apart_for_every_kind_of_colour_vision(vision, palette):
    seen = [_lab(colour, VISION[vision]) for colour in palette]
    apart = [float(np.linalg.norm(a - b)) for a, b in itertools.combinations(seen, 2)]
    assert min(apart) > 10  # 2.3 is just noticeable (Mahy et al. 1994)


# --- steps -----------------------------------------------------------------------------------------------------


@given(st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=400))
def test_the_distribution_is_the_empirical_one(times_s):
    curve = distribution(times_s)
    for time_s, share in curve:
        # With ties, the curve passes several shares at one time, and ends on the true one.
        assert share <= np.mean(np.asarray(times_s) <= time_s) + 1e-12
        assert share > np.mean(np.asarray(times_s) < time_s) - 1e-12
    assert curve[-1] == (max(times_s), 1.0)
    assert curve == sorted(curve)
    assert len(curve) <= 240


def test_median_and_p95_of_every_run_are_marked_where_they_belong():
    made = three()
    marks = next(part for part in rows(charts(made)["steps"]) if "what" in part[0])
    for label, run in zip(labels(made.show.runs), made.show.runs, strict=True):
        own = {mark["share"]: mark["time"] for mark in marks if mark["run"] == label}
        assert own == pytest.approx({50: 1e3 * run.step_s.median, 95: 1e3 * run.step_s.p95})


# --- learning --------------------------------------------------------------------------------------------------


def test_learning_draws_what_was_recorded_in_percent_and_leaves_gaps_open():
    run = metrics(1)
    curves = [{"name": "test_top1", "epochs": [1, 2, 3], "values": [0.5, None, 0.9]}]
    made = report([run], details=[detail(run, curves=curves)])
    drawn = rows(charts(made)["accuracy"])[0]
    assert [(row["epoch"], row["value"]) for row in drawn] == [(1, 50.0), (2, None), (3, 90.0)]
    assert "loss" not in charts(made)


def test_scores_of_several_labels_are_drawn_and_stand_in_the_table():
    run = {**metrics(1), "accuracy": None, "accuracy_top5": None}
    scores = {"test_map": [0.3, 0.5], "test_f1_micro": [0.2, 0.4], "test_f1_macro": [0.1, 0.25]}
    curves = [{"name": name, "epochs": [1, 2], "values": values} for name, values in scores.items()]
    made = report([run], details=[detail(run, curves=curves)])
    learnt = blocks(made)["learning"]
    assert "Mean average precision over labels in the last test: 50.0 %" in text_of(learnt)
    (table,) = parts(learnt, Table)
    named = dict(zip(table.columns, table.rows[0], strict=True))
    assert (named["Test mAP"], named["Test micro F1"], named["Test macro F1"]) == ("50.0 %", "40.0 %", "25.0 %")
    drawn = charts(made)["accuracy"]
    assert {(row["curve"], row["value"]) for row in rows(drawn)[0]} == {
        (curve, 100 * value)
        for curve, name in (("mAP", "test_map"), ("micro F1", "test_f1_micro"), ("macro F1", "test_f1_macro"))
        for value in scores[name]
    }
    assert "Full lines: mAP; dashed: micro F1; dotted: macro F1." in drawn.caption


def test_curves_that_are_not_drawn_are_named():
    assert "not drawn: lr" in text_of(blocks(three())["learning"])


# --- environment -----------------------------------------------------------------------------------------------


def test_only_differences_that_a_study_does_not_intend_are_highlighted():
    made = three()
    differing, same = parts(blocks(made)["environment"], Table)
    marked = {differing.rows[index][0] for index in differing.marked}
    assert marked == {"source"}  # the run on 2 ranks came from a changed working tree
    assert {"run", "command", "ranks", "global batch"} <= {row[0] for row in differing.rows}
    assert ("clock source", "tsc") in [tuple(row) for row in same.rows]
    assert not {row[0] for row in differing.rows} & {row[0] for row in same.rows}


def test_hosts_that_differ_within_a_run_are_counted():
    run = metrics(8)
    machines = [host("a"), host("b"), host("c", kernel="6.9.0", fingerprint="77")]
    made = report([run], details=[detail(run, hosts=machines)])
    (table,) = parts(blocks(made)["environment"], Table)
    system = dict(tuple(row) for row in table.rows)["system"]
    assert system == "Debian GNU/Linux 12, kernel 6.1.0 (2 hosts); Debian GNU/Linux 12, kernel 6.9.0 (1 host)"
    assert "2 kinds of machine" in blocks(made)["environment"].lead


# --- method ----------------------------------------------------------------------------------------------------


def test_steps_left_out_are_counted_with_their_reasons():
    block = blocks(three())["method"]
    assert block.lead == "Rates rest on 721 steady steps; 72 steps were left out."
    (table,) = parts(block, Table)
    assert table.rows[0][1] == "5 (first steps of the run), 9 (first batch of an epoch), 10 (contain an evaluation)"


def test_the_definitions_cite_their_sources_and_state_the_formula_of_wait():
    (terms,) = parts(blocks(three())["method"], Terms)
    said = " ".join(meaning for _, meaning in terms.pairs)
    for needed in ("Politis and Romano, 1994", "Politis and White, 2004", "clip(min(last arrival, done) − arrival, 0)"):
        assert needed in said


# --- names and bounds ------------------------------------------------------------------------------------------


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(1, 4), st.sampled_from(["digits", "x" * 90, HOSTILE])), min_size=1, max_size=8))
def test_labels_are_short_and_all_different(kinds):
    runs = report([metrics(ranks, name=name) for ranks, name in kinds], details=[]).show.runs
    made = labels(runs)
    assert len(set(made)) == len(made) == len(kinds)
    assert max(map(len, made)) <= 28


def test_labels_hold_no_name_where_ranks_tell_runs_apart():
    runs = report([metrics(ranks, name=HOSTILE) for ranks in (1, 2)]).show.runs
    assert labels(runs) == ["1 rank", "2 ranks"]


def test_the_subject_names_each_name_once():
    runs = report([metrics(1), metrics(2), metrics(4, name="letters")]).show.runs
    assert subject(runs) == "digits and letters"


def test_a_report_of_very_many_runs_is_cut_evenly_and_says_so():
    made = bounded(report([metrics(ranks, gaps=["gap"] * 500) for ranks in range(1, 201)]))
    ranks = [run.ranks for run in made.show.runs]
    assert len(ranks) <= MAX_RUNS + 1
    assert (ranks[0], ranks[-1]) == (1, 200)
    assert [item.metrics.ranks for item in made.details] == ranks
    assert f"shows {len(ranks)} of 200 runs" in made.show.notes[-1]
    assert len(made.show.runs[0].gaps) == MAX_LINES + 1
    assert made.show.runs[0].gaps[-1] == "and 440 more gaps"


@given(st.integers(0, 500), st.integers(2, 60), st.integers(0, 499))
def test_evenly_keeps_ends_and_the_wanted_one(count, limit, wanted):
    keep = [wanted] if wanted < count else []
    chosen = evenly(count, limit, keep=keep)
    assert chosen == sorted(set(chosen))
    assert len(chosen) <= max(limit, 2 + len(keep))
    assert set(keep) <= set(chosen)
    if count:
        assert {0, count - 1} <= set(chosen) <= set(range(count))


@pytest.mark.parametrize("ranks", [0, -3, 10**30])
def test_an_impossible_number_of_ranks_is_refused(ranks):
    run = metrics(1) | {"ranks": ranks}
    made = report([run], details=[detail(metrics(1), metrics=run)])
    with pytest.raises(BadInput, match="ranks"):
        bounded(made)


def test_a_report_without_runs_and_one_with_foreign_details_are_refused():
    nothing = report([metrics(1)]).model_copy(update={"details": []})
    with pytest.raises(BadInput, match="details"):
        bounded(nothing)
    made = report([metrics(1)])
    with pytest.raises(BadInput, match="no run"):
        bounded(made.model_copy(update={"show": made.show.model_copy(update={"runs": []}), "details": []}))


# --- any numbers -----------------------------------------------------------------------------------------------

NUMBER = st.floats(-1e290, 1e290, allow_subnormal=False)
ANY = st.none() | NUMBER
INTERVAL = st.none() | st.fixed_dictionaries({"value": NUMBER, "low": ANY, "high": ANY})
RUN = st.fixed_dictionaries(
    {
        "throughput": INTERVAL,
        "step_s": st.none() | st.fixed_dictionaries({"median": st.floats(0, 1e300), "p95": st.floats(0, 1e300)}),
        "phases": st.dictionaries(st.sampled_from([*PHASES, "mine"]), ANY),
        **dict.fromkeys(("closure_error", "accuracy", "speedup", "efficiency", "samples_per_rank_step"), ANY),
        "speedup_interval": INTERVAL,
        "efficiency_interval": INTERVAL,
    }
)
CURVE = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["train_loss", "test_top1", "mine"]),
        "epochs": st.lists(NUMBER, max_size=3),
        "values": st.lists(ANY, max_size=3),
    }
)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(st.lists(RUN, min_size=1, max_size=3), st.lists(CURVE, max_size=2), st.lists(st.floats(0, 1e300), max_size=4))
def test_any_finite_numbers_make_a_report_whose_charts_are_strict_json(changes, curves, times_s):
    runs = [metrics(ranks, **change) for ranks, change in zip((1, 2, 4), changes, strict=False)]
    details = [detail(run, curves=curves, step_times_s=times_s) for run in runs]
    made = bounded(report(runs, details=details))
    for chart in charts(made).values():
        for canvas in (LIVE, FIGURE):
            json.loads(embeddable(dress(chart, canvas)), parse_constant=pytest.fail)
