"""When what was planted struck: what the truth is told, what hosts report, and from when on it counts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allpull.rehearse.host.network import Change
from allpull.rehearse.host.reports import Reports, send
from allpull.rehearse.host.truth import FirstSteps, Moments, not_struck
from allpull.rundir.live.activity import STEP, live_words

CUT = Change(kind="cut", at_s=2.0, number=1)
SLOWER = Change(kind="throttle", at_s=1.0, number=0, bits_per_s=8_000_000)


@pytest.fixture
def truth(tmp_path):
    path = tmp_path / "truth.json"
    path.write_text(json.dumps({"faults": ["as planted"]}))
    return path


def test_the_truth_is_told_the_zero_and_what_struck_and_keeps_what_it_knew(truth):
    moments = Moments(truth)
    before_ns = time.monotonic_ns()
    zero_s = moments.begin("first-step")
    moments.add(SLOWER, 5)
    told = json.loads(truth.read_text())
    assert told["faults"] == ["as planted"]
    assert before_ns <= told["moments"]["zero"]["monotonic_ns"] <= time.monotonic_ns()
    assert told["moments"]["zero"]["monotonic_ns"] == pytest.approx(zero_s * 1e9)
    assert told["moments"]["struck"] == [
        {"kind": "slow-link", "host": 0, "from_s": 1.0, "rate_bytes_per_s": 1e6, "monotonic_ns": 5}
    ]


def test_what_has_not_struck_is_known(truth):
    assert [one["kind"] for one in not_struck(truth, (SLOWER, CUT))] == ["slow-link", "host-cut-off"]
    Moments(truth).add(SLOWER, 5)
    assert [one["kind"] for one in not_struck(truth, (SLOWER, CUT))] == ["host-cut-off"]


def test_a_truth_that_cannot_be_written_ends_nothing(tmp_path):
    Moments(tmp_path / "absent" / "truth.json").begin("start")
    assert not_struck(tmp_path / "absent" / "truth.json", (CUT,)) == []


def test_first_steps_are_made_when_the_last_rank_has_made_its_own(tmp_path):
    """Whatever a rank did before its first step, and however many steps the others have made."""
    first_steps = FirstSteps(str(tmp_path), 2)
    assert not first_steps.are_made()
    ranks = [live_words(str(tmp_path), rank) for rank in range(2)]
    ranks[0][STEP] = 7
    assert not first_steps.are_made()
    ranks[1][STEP] = 1
    assert first_steps.are_made()


@given(st.lists(st.dictionaries(st.sampled_from(["ready", "killed", "clock"]), st.integers() | st.text(max_size=9))))
def test_reports_arrive_whole_and_in_order(reports):
    ear, mouth = os.pipe()
    heard = Reports(ear)
    found = []
    for number, news in enumerate(reports):
        send(mouth, **news)
        if number % 3 == 0:
            found += heard.read()
    os.write(mouth, b'{"not yet')
    assert [*found, *heard.read()] == reports
    os.write(mouth, b'": 1}\n')
    assert [*heard.read()] == [{"not yet": 1}]
    for descriptor in (ear, mouth):
        os.close(descriptor)


def test_who_reports_to_a_keeper_that_has_gone_goes_on():
    ear, mouth = os.pipe()
    os.close(ear)
    send(mouth, ready=0)
    os.close(mouth)


RANK = """
import os, sys
from allpull.rehearse.ranks.fork_server import import_once
import_once()
before = len(sys.modules)
import torch
import torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
print(len(sys.modules) - before, flush=True)
os._exit(0)
"""


@pytest.mark.torch
def test_a_rank_has_next_to_nothing_left_to_import():
    """DDP's constructor imports torch._dynamo and sympy, 800 modules: forked ranks would each do so."""
    done = subprocess.run([sys.executable, "-c", RANK], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 50
