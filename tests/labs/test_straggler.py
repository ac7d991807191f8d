"""The lab of the straggler: what it plants, what it refuses, and that real runs are explained, mended and ended."""

import os
import shutil
import signal
import subprocess
import sys
import time

import psutil
import pytest

from allpull.errors import BadInput, MissingPart
from allpull.labs import straggler
from allpull.labs.straggler import FAULTS, StragglerLab, run_straggler
from allpull.labs.straggler_page import page
from allpull.report.page import render_page

ROOT = os.geteuid() == 0 and shutil.which("tc") is not None


def test_each_seed_plants_each_fault_once_on_different_ranks():
    every = [StragglerLab(seed=seed).planted for seed in range(40)]
    assert all(sorted(fault for fault, _ in one) == sorted(FAULTS) for one in every)
    assert all(len({rank for _, rank in one}) == 3 for one in every)
    assert len({tuple(one) for one in every}) > 20
    assert StragglerLab(seed=5).planted == every[5]
    assert StragglerLab(seed=5, faults=("thin-link",)).planted == [one for one in every[5] if one[0] == "thin-link"]


@pytest.mark.parametrize("ranks", [2, 10_000])
def test_too_few_or_too_many_ranks_are_refused(ranks, tmp_path):
    with pytest.raises(BadInput, match=f"-n {ranks}: this machine has .* CPU"):
        run_straggler(StragglerLab(ranks=ranks), tmp_path)


def test_a_thin_link_alone_is_refused_where_there_are_no_hosts(monkeypatch, tmp_path):
    monkeypatch.setattr(straggler, "why_no_hosts", lambda: "a virtual cluster needs Linux")
    with pytest.raises(MissingPart, match="needs Linux"):
        run_straggler(StragglerLab(faults=("thin-link",)), tmp_path)


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.ranks
def test_real_runs_are_explained_and_mended(stragglers):
    planted = [one for one in StragglerLab(ranks=3).planted if one[0] != "thin-link"]
    assert [(case.fault, case.rank) for case in stragglers.cases] == planted
    assert not stragglers.on_hosts
    assert "virtual hosts" in stragglers.left_out
    for case in stragglers.cases:
        assert case.named
        assert case.came.value > 1.05  # 80 ms of about 270 are gone
        assert case.promised.value == pytest.approx(case.came.value, rel=0.25)


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.ranks
def test_the_page_has_the_measured_values_and_hides_the_answer_behind_a_guess(stragglers):
    made = page(stragglers)
    text = render_page(made).replace("\N{NO-BREAK SPACE}", " ")
    for letter, case in zip("ab", stragglers.cases, strict=True):
        kinds = [part.kind for part in made.blocks[letter].parts]
        assert kinds.index("chart") < kinds.index("guess") < kinds.index("cards") < kinds.index("tiles")
        assert f"{case.came.value:.2f}×" in text
        assert case.findings[0].title in text
        cause, rank = made.blocks[letter].parts[1].questions
        assert [answer.startswith("Right") for answer in cause.answers].count(True) == 1
        assert [answer.startswith("Right") for answer in rank.answers].index(True) == case.rank
    assert "thin" not in made.subject
    assert stragglers.left_out in text


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.alone
@pytest.mark.torch
@pytest.mark.ranks
@pytest.mark.skipif(not ROOT, reason="needs root and iproute2")
def test_a_thin_link_is_named_by_its_host(tmp_path):
    (case,) = run_straggler(StragglerLab(faults=("thin-link",), seed=3), tmp_path).cases
    assert (case.named, case.host) == (True, f"node{case.rank + 1}")
    assert case.came.value > 1.2


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.ranks
def test_an_interrupted_lab_leaves_no_process(tmp_path):
    command = [sys.executable, "-m", "allpull", "lab", "straggler", "--fault", "slow-rank", "--no-open"]
    lab = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, start_new_session=True)
    until = time.monotonic() + 120
    while not list(tmp_path.glob("runs/*/steps/rank-*")) and time.monotonic() < until:
        time.sleep(0.2)
    family = psutil.Process(lab.pid).children(recursive=True)
    assert family
    lab.send_signal(signal.SIGINT)
    assert lab.wait(60) == 130
    _, alive = psutil.wait_procs(family, timeout=30)
    assert alive == []
    assert b"Traceback" not in lab.stderr.read()
