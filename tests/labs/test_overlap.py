"""The lab of overlap: what it refuses, and that recorded lanes obey DDP's rules and a replay meets its own run."""

import pytest

from allpull.errors import BadInput
from allpull.labs.overlap import OverlapLab, run_overlap
from allpull.labs.overlap_page import page
from allpull.nets import network
from allpull.report.page import render_page


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"ranks": 1}, "-n 1: this machine has"),
        ({"ranks": 10_000}, "-n 10000: this machine has"),
        ({"sizes_mib": (25.0,)}, "--buckets: 2 to 12"),
        ({"sizes_mib": (1.0, float("nan"))}, "--buckets: nan MiB"),
        ({"sizes_mib": (0.0, 1.0)}, "--buckets: 0 MiB"),
    ],
)
def test_what_cannot_be_done_is_refused(fields, word, tmp_path):
    with pytest.raises(BadInput, match=word):
        run_overlap(OverlapLab(**fields), tmp_path)


def test_sizes_are_ordered_and_the_base_is_nearest_to_the_default():
    lab = OverlapLab(sizes_mib=(100.0, 4.0, 30.0, 4.0))
    assert (lab.ordered, lab.base_mib) == ([4.0, 30.0, 100.0], 30.0)


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.ranks
def test_lanes_obey_the_rules_of_ddp(overlaps):
    small, single = overlaps.runs
    for run in overlaps.runs:
        assert sum(bucket.size_bytes for bucket in run.buckets) == 4 * network("resnet18").parameters
        assert run.hidden_s + run.exposed_s == pytest.approx(run.exchange_s)
        for before, after in zip(run.buckets, run.buckets[1:], strict=False):
            assert before.ready_s <= after.ready_s
            assert before.end_s <= after.begin_s + 1e-6
        assert all(bucket.ready_s <= bucket.begin_s + 1e-6 for bucket in run.buckets)
        last_s = max(part.end_s for part in run.compute if part.part == "backward")
        assert run.buckets[-1].ready_s == pytest.approx(last_s, abs=1e-6)  # the last gradient ends backward
    assert len(small.buckets) > len(single.buckets) == 1
    assert single.hidden_s == pytest.approx(0, abs=1e-3)
    assert small.hidden_s > 0
    assert overlaps.base_mib == small.bucket_mib
    assert small.replayed_s == pytest.approx(small.step_s, rel=0.15)  # of itself, cut evenly
    assert single.replayed_s > small.replayed_s


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.ranks
def test_the_page_has_the_measured_values_and_says_that_there_are_no_links(overlaps):
    made = page(overlaps)
    text = render_page(made)
    assert overlaps.unshaped in text
    for run, row in zip(overlaps.runs, made.blocks["sizes"].parts[1].rows, strict=True):
        assert row[:2] == [f"{run.bucket_mib:g} MiB", f"{len(run.buckets)}"]
