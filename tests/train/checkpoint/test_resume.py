"""A job that a queue gave back goes on from its own run directory, if there is anything to go on from."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import pytest

pytest.importorskip("torch")

import torch

from allpull.data.loader import pool
from allpull.errors import BadInput
from allpull.schema.spec import LaunchSpec, RunSpec, from_plain
from allpull.schema.trainspec import DataSpec, TrainSpec
from allpull.train.__main__ import with_resume, with_threads
from allpull.train.loop import train
from allpull.train.parallel.ranks import Ranks


@pytest.mark.torch
@pytest.mark.parametrize(
    ("asked", "checkpoint", "goes_on"), [("1", True, True), ("1", False, False), ("", True, False), (None, True, False)]
)
def test_it_goes_on_only_where_asked_and_where_it_can(tmp_path, monkeypatch, asked, checkpoint, goes_on):
    monkeypatch.delenv("ALLPULL_RESUME", raising=False)
    if asked is not None:
        monkeypatch.setenv("ALLPULL_RESUME", asked)
    if checkpoint:
        (tmp_path / "checkpoints").mkdir()
        (tmp_path / "checkpoints/step-0000000007.pt").write_bytes(b"")
    spec = RunSpec(train=TrainSpec(resume="/another/run", epochs=3))
    found = with_resume(spec, tmp_path)
    assert found.train.resume == (str(tmp_path) if goes_on else "/another/run")
    assert found.train.epochs == 3


@pytest.mark.parametrize(
    ("bind", "name", "said", "threads"),
    [
        ("none", "pack", 0, 0),
        ("cores", "pack", 0, 6),
        ("numa", "pack", 0, 6),
        ("cores", "pack", 2, 2),
        ("cores", "digits", 0, 0),
    ],
)
def test_a_rank_with_processors_of_its_own_decodes_on_all_of_them(monkeypatch, bind, name, said, threads):
    """The mask of a bound rank is its own share already: four ranks of a host do not divide it again."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(6)), raising=False)
    monkeypatch.setattr(pool, "cpu_quota", lambda tree: None)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    spec = RunSpec(launch=LaunchSpec(bind=bind), data=DataSpec(name=name, threads=said))
    assert with_threads(spec).data.threads == threads


@pytest.mark.slow
@pytest.mark.ranks
def test_a_training_that_had_ended_when_it_was_started_again_is_scored_once_more(train_digits, monkeypatch, tmp_path):
    """A queue may take the hosts away in the last moment; that is no failure when the job comes back."""
    done = train_digits(1, "train.epochs=1", "data.limit=64", "observe.counters=false")
    assert done.code == 0, done.err
    job = json.loads((done.directory / "job/spec.json").read_text())
    monkeypatch.setenv("ALLPULL_RESUME", "1")
    spec = from_plain(RunSpec, job["spec"])
    alone = Ranks(rank=0, ranks=1, device=torch.device("cpu"))
    history = train(with_resume(spec, done.directory), alone, done.directory)
    assert history.losses == []
    assert [history.score.loss] == done.metric("test_loss")
    with pytest.raises(BadInput, match="has already trained 1 epochs"):
        train(replace(spec, train=replace(spec.train, resume=str(done.directory))), alone, tmp_path)


@pytest.mark.slow
@pytest.mark.ranks
def test_who_stops_within_an_epoch_is_told_what_was_not_as_asked_and_has_a_curve(train_digits):
    short = ("train.stop_after=3", "data.limit=256", "train.log_every=2", "observe.counters=false")
    done = train_digits(1, *short, "parallel.strategy=fsdp")
    assert done.code == 0, done.err
    assert len(done.metric("train_loss")) == 1  # the mean of two steps; the third alone is no point yet
    if not torch.cuda.is_available():
        other = train_digits(1, *short, "train.cuda_graph=true")
        assert "train.cuda_graph: steps run eagerly: CUDA graphs need a GPU" in " ".join(other.err.split())
    assert "stopped after 3 steps in all, as requested" in " ".join(done.err.split())
    assert "parallel.strategy: a single rank has no weights to shard" in " ".join(done.err.split())


@pytest.mark.slow
@pytest.mark.ranks
def test_who_goes_on_from_an_older_checkpoint_than_the_newest_is_told(train_digits):
    short = ("data.limit=256", "train.checkpoint_every=2", "observe.counters=false")
    first = train_digits(1, *short, "train.stop_after=3")
    newest = max((first.directory / "checkpoints").iterdir())
    newest.write_bytes(newest.read_bytes()[:-1000])
    second = train_digits(1, *short, "train.stop_after=4", resume=first.directory)
    assert second.code == 0, second.err
    said = " ".join(second.err.split())
    assert f"train.resume: {newest.name} cannot be read" in said
    assert "resuming from step-0000000002.pt" in said
