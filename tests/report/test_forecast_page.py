"""The page of a forecast: its sentence for a proposal, its charts, and that a refusal has a page, too."""

import pytest

from allpull.report.forecast_page import page, proposal
from allpull.report.page import render_page
from allpull.schema.base import tag
from allpull.schema.forecast import (
    Baseline,
    CalibrationRun,
    EpochForecast,
    ForecastParameter,
    ForecastResult,
    ForecastSize,
    NextMeasurement,
    RefusedForecast,
    WhatIf,
)
from allpull.schema.interval import Interval
from allpull.schema.target import Bounds, Interruptions, TargetForecast

NAME = "<script>alert(1)</script>"


def near(value):
    return Interval(value=value, low=0.9 * value, high=1.1 * value)


def size(ranks, efficiency, measured_s=None):
    step_s = 0.1 / efficiency
    return ForecastSize(
        ranks=ranks,
        hosts=ranks,
        batch=32.0,
        step_s=near(step_s),
        throughput=near(32 * ranks / step_s),
        speedup=near(ranks * efficiency),
        efficiency=near(efficiency),
        terms={"compute": 0.1, "exchange": step_s - 0.1},
        epoch=EpochForecast(steps=10, seconds=near(10 * step_s), terms={"compute": 1.0, "exchange": 10 * step_s - 1}),
        extrapolation=ranks / 2,
        bottleneck="exchange",
        measured_step_s=measured_s,
    )


def result(*efficiencies, **fields):
    sizes = [size(4 << place, efficiency) for place, efficiency in enumerate(efficiencies)]
    some = Bounds(value=5.0, low=4.0, high=6.0)
    made = {
        "schema": tag("forecast"),
        "program": NAME,
        "calibration": [
            CalibrationRun(run=f"n{n}", kind="run", ranks=n, hosts=n, batch=32.0, steps=60, step_s=0.1) for n in (1, 2)
        ],
        "speedup_reference": 1,
        "parameters": [
            ForecastParameter(name="latency", unit="s", value=near(1e-4), state="assumed", reason=NAME, source="n2")
        ],
        "predictions": sizes,
        "baselines": [Baseline(name="no overlap", ranks=one.ranks, hosts=one.hosts, step_s=0.2) for one in sizes],
        "waterfall": [
            WhatIf(
                change="link=x2",
                ranks=one.ranks,
                hosts=one.hosts,
                step_s=near(0.1),
                throughput=near(32 * one.ranks / 0.1),
                change_s={"exchange": 0.1 - one.step_s.value},
                bottleneck="exchange",
            )
            for one in sizes
        ],
        "refused": None,
        "refused_sizes": [RefusedForecast(ranks=9, hosts=10, reason="10 hosts are more than 9 ranks")],
        "next_measurement": NextMeasurement(parameter="latency", command="allpull probe allreduce -n 2", share=0.8),
        "notes": [NAME],
        "targets": [
            TargetForecast(
                ranks=one.ranks,
                hosts=one.hosts,
                global_batch=32.0 * one.ranks,
                target="90 epochs",
                epochs_from="stated",
                recipe=None,
                epochs=some,
                bounded=None,
                time_s=some,
                interruptions=Interruptions(
                    source="stated", mean_between_s=some, chance=some, checkpoint_interval_s=None, useful_share=None
                ),
                energy_kwh=some,
                power_from="stated",
                cost=some,
                notes=[],
            )
            for one in sizes
        ],
    }
    return ForecastResult(**{**made, **fields})


@pytest.mark.parametrize(
    ("efficiencies", "sentence"),
    [
        ((0.95, 0.85), "Up to 8 ranks efficiency stays above"),
        ((0.95, 0.7), "Beyond 4 ranks efficiency falls under"),
        ((0.7, 0.6), "At 4 ranks efficiency is under"),
    ],
)
def test_the_sentence_for_a_proposal(efficiencies, sentence):
    assert proposal(result(*efficiencies)).startswith(sentence)


def test_every_part_is_drawn_and_no_text_becomes_markup():
    shown = page(result(0.95, 0.85, 0.7))
    assert list(shown.blocks) == ["answer", "sizes", "terms", "epochs", "changes", "target", "certainty"]
    text = render_page(shown)
    assert NAME not in text
    for slug in ("forecast-rate", "forecast-terms", "what-if-a"):
        assert f'id="spec-{slug}"' in text
    assert "allpull probe allreduce -n 2" in text


def test_a_refusal_has_a_page():
    none = {"predictions": [], "baselines": [], "waterfall": [], "targets": [], "refused": "two programs"}
    text = render_page(page(result(0.9, **none)))
    assert "No forecast: two programs." in text


def test_changes_have_different_charts():
    two = result(0.9)
    more = [two.waterfall[0], two.waterfall[0].model_copy(update={"change": "bucket=8MiB"})]
    text = render_page(page(two.model_copy(update={"waterfall": more})))
    assert 'id="spec-what-if-a"' in text
    assert 'id="spec-what-if-b"' in text
