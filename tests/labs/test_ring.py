"""The lab of the ring: what real ranks send, counted by kernels, against the formulas."""

import os
import shutil

import pytest

from allpull.errors import AllpullError, BadInput
from allpull.labs import ranks
from allpull.labs.ring import RingLab, run_ring
from allpull.labs.ring_page import _fastest, page
from allpull.report.page import render_page
from allpull.schema.labs import TimedExchange


@pytest.fixture(
    scope="module", params=[3, pytest.param(2, marks=pytest.mark.slow), pytest.param(4, marks=pytest.mark.slow)]
)
def result(request):
    return run_ring(RingLab(ranks=request.param, size_bytes=120_000))


def test_every_rank_has_the_sum(result):
    assert result.right
    assert all(inside == 2**result.ranks - 1 for of_rank in result.summed[-1] for inside in of_rank)


def test_the_ring_sends_what_the_formula_says(result):
    counted = next(one for one in result.exchanges if one.algorithm == "ring")
    assert set(counted.messages_per_rank) == {2 * (result.ranks - 1)}
    assert (
        counted.bytes_per_rank == [pytest.approx(2 * (result.ranks - 1) / result.ranks * 120_000, abs=8)] * result.ranks
    )
    assert result.messages_per_rank == result.formula_messages


def test_the_others_send_theirs(result):
    sums = {one.algorithm: sum(one.messages_per_rank) for one in result.exchanges}
    assert sums["tree"] == sums["naive"] == 2 * (result.ranks - 1)
    naive = next(one for one in result.exchanges if one.algorithm == "naive")
    assert naive.messages_per_rank == [result.ranks - 1, *[1] * (result.ranks - 1)]
    assert naive.busiest_bytes == pytest.approx(2 * (result.ranks - 1) * 120_000, abs=64)


def test_each_step_adds_one_rank_to_one_chunk_of_each(result):
    for before, after in zip(result.summed, result.summed[1:], strict=False):
        for old, new in zip(before, after, strict=True):
            changed = [place for place in range(result.ranks) if old[place] != new[place]]
            assert len(changed) == 1
            assert old[changed[0]] & ~new[changed[0]] == 0
    half = result.summed[result.ranks - 1]  # reduce-scatter is done: each rank has one complete chunk
    assert [of_rank.count(2**result.ranks - 1) for of_rank in half] == [1] * result.ranks


def test_times_have_their_range(result):
    assert all(one.least_seconds <= one.seconds <= one.most_seconds for one in result.times)


def test_only_a_time_that_no_other_meets_is_the_fastest():
    def timed(algorithm, least, middle, most):
        return TimedExchange(
            algorithm=algorithm, ranks=2, size_bytes=8, seconds=middle, least_seconds=least, most_seconds=most
        )

    ring, tree = timed("ring", 1.0, 2.0, 3.0), timed("tree", 3.5, 4.0, 5.0)
    assert _fastest([tree, ring], 8) == "ring"
    assert _fastest([tree.model_copy(update={"least_seconds": 2.5}), ring], 8) == "no algorithm clearly"


def test_the_page_has_the_counted_values(result):
    text = render_page(page(result))
    assert f"{result.bytes_per_rank:,} B" in text
    assert f"{result.messages_per_rank}" in text


@pytest.mark.parametrize(
    ("fields", "word"),
    [({"ranks": 1}, "2 to 16"), ({"ranks": 17}, "2 to 16"), ({"size_bytes": 6}, "--size"), ({"link": "fast"}, "rate")],
)
def test_what_cannot_be_done_is_refused(fields, word):
    with pytest.raises(BadInput, match=word):
        run_ring(RingLab(**fields))


def test_a_rank_that_fails_is_named_and_none_is_left(monkeypatch, tmp_path):
    program = tmp_path / "broken.py"
    program.write_text("import os, sys, time\nif os.environ['RANK'] == '1': sys.exit('no route')\ntime.sleep(600)\n")
    started = []
    popen = ranks.subprocess.Popen
    monkeypatch.setattr(ranks.subprocess, "Popen", lambda *a, **k: started.append(popen(*a, **k)) or started[-1])
    with pytest.raises(AllpullError, match=r"rank 1 .*no route"):
        ranks.run_here([str(program)], 3, patience_s=60)
    assert all(process.returncode is not None for process in started)


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.alone
@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("tc") is None, reason="needs root and iproute2")
def test_on_rehearsed_links_the_ring_is_faster_for_large_sums(tmp_path):
    result = run_ring(RingLab(ranks=4, link="50 Mbit/s"), tmp_path)
    assert result.right
    seconds = {one.algorithm: one.seconds for one in result.times if one.ranks == 4 and one.size_bytes == 1 << 20}
    assert seconds["ring"] < seconds["tree"] < seconds["naive"]
