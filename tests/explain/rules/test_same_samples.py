"""Ranks and loader workers that give the same samples are told so, and those with a share each are not."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.oracle.records import Recording, write
from tests.oracle.simulator import simulate
from tests.oracle.training import Wire, even, spread

import allpull

ONE, OTHER, THIRD = (
    "0a43fc74c165dbc93f959c58d6840cae",
    "af68287192208f64ba3a7e62b258e519",
    "69932c48c805fc4c7a717e870b00bf94",
)
CONSTANT = 3 * ONE[:8]
PROGRAM = """
import sys
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset, get_worker_info

which = sys.argv[1]
torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(0)
data = TensorDataset(torch.randn(320, 32), torch.randint(0, 3, (320,)))

class Stream(IterableDataset):
    def __iter__(self):
        return iter(data)

class OfRank(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        share, shares = dist.get_rank(), 2
        if which == "divided":
            share, shares = share * info.num_workers + info.id, shares * info.num_workers
        return (data[place] for place in range(share, len(data), shares))

if which == "stream":
    loader = DataLoader(Stream(), batch_size=8, num_workers=1)
elif which in ("repeated", "divided"):
    loader = DataLoader(OfRank(), batch_size=8, num_workers=3)
elif which == "right":
    loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data, shuffle=False))
else:
    loader = DataLoader(data, batch_size=8, shuffle=True)
network = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 3))
ddp = network if which == "by hand" else DistributedDataParallel(network)
optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
batches = [next(iter(loader))] * 20 if which == "constant" else loader
for images, labels in batches:
    optimizer.zero_grad()
    nn.functional.cross_entropy(ddp(images), labels).backward()
    if which == "by hand":
        for parameter in network.parameters():
            dist.all_reduce(parameter.grad)
    optimizer.step()
dist.destroy_process_group()
"""


def recorded(
    folder: Path, digests: Sequence[str], *, group_ranks: int | None, workers: int | None = None
) -> allpull.Run:
    """A healthy run of ranks with these ``digests`` of first batches; ``group_ranks``: of their DDP, None: no DDP.

    ``workers``: of their loaders, which read an `IterableDataset`; None: another data set.
    """
    ranks = len(digests)
    buckets, wire = spread(total=1 << 20, count=1), Wire(latency_s=0.0, bytes_per_s=1e9)
    training = even(ranks=ranks, steps=20, forward_s=0.01, backward_s=0.02, buckets=buckets, wire=wire)
    run = write(simulate(training), folder, Recording(warmup=0))
    parallel: dict[str, Any] = {
        "kind": "data_parallel",
        "step": 4,
        "network": 0,
        "find_unused_parameters": False,
        "broadcast_buffers": True,
        "buffers_bytes": 0,
        "group_ranks": group_ranks,
        "t_ns": 0,
    }
    for rank, digest in enumerate(digests):
        first = {"kind": "first_batches", "digests": digest, "iterable_workers": workers, "t_ns": 0}
        events: list[dict[str, Any]] = [first] if digest else []
        path = run / f"events/rank-{rank:05d}.jsonl"
        header, *kept = path.read_text("ascii").splitlines()
        made = [json.dumps(one) for one in (*events, *([parallel] if group_ranks else []))]
        path.write_text("\n".join((header, *made, *kept, "")), "ascii")
    return allpull.open_run(run)


def said(run: allpull.Run) -> tuple[list[str], list[str]]:
    """Titles of findings of the rule, and notes of ``explain``; those of ``show`` are the same."""
    explained = allpull.explain(run)
    return (
        [one.title for one in explained.findings if one.rule == "same-samples"],
        [note for note in explained.notes if "same samples" in note],
    )


def test_copies_of_a_model_that_train_on_the_same_samples(tmp_path: Path) -> None:
    run = recorded(tmp_path, [ONE, ONE], group_ranks=2)
    explained = allpull.explain(run)
    assert explained.findings[0].title == "Both ranks train on the same samples, and their gradients are averaged"
    assert explained.findings[0].ranks == []
    assert explained.healthy is None
    assert "both ranks train on the same samples: samples/s counts each of them 2 times" in run.gaps
    assert said(run)[1] == []


def test_some_of_the_ranks(tmp_path: Path) -> None:
    run = recorded(tmp_path, [ONE, OTHER, THIRD, ONE], group_ranks=4)
    finding = allpull.explain(run).findings[0]
    assert finding.title == "Ranks 0, 3 train on the same samples, and their gradients are averaged"
    assert finding.ranks == [0, 3]


@pytest.mark.parametrize("group_ranks", [None, 2])
def test_parts_of_a_model_share_samples(tmp_path: Path, group_ranks: int | None) -> None:
    """Ranks 0 and 1, and 2 and 3 have parts of one model: of its two copies DDP averages each part's gradients."""
    titles, notes = said(recorded(tmp_path, [ONE, ONE, OTHER, OTHER], group_ranks=group_ranks))
    assert titles == []
    (note,) = notes
    assert note.startswith("2 groups of ranks, such as ranks 0, 1, train on the same samples")
    assert "2 times; parts of one model do that" in note


@pytest.mark.parametrize(
    "digests",
    [
        pytest.param([ONE, OTHER], id="a share each"),
        pytest.param([CONSTANT, CONSTANT], id="one batch again and again"),
        pytest.param([ONE[:16], ONE[:16]], id="too few batches"),
        pytest.param(["", ""], id="not known"),
        pytest.param([ONE, ""], id="known of one"),
    ],
)
def test_nobody_else_is_told_so(tmp_path: Path, digests: list[str]) -> None:
    assert said(recorded(tmp_path, digests, group_ranks=2)) == ([], [])


def in_a_row(digests: str, times: int) -> str:
    """Each of ``digests`` so many ``times``."""
    return "".join(times * digests[start : start + 8] for start in range(0, len(digests), 8))


def test_workers_that_each_have_all_samples_of_the_rank(tmp_path: Path) -> None:
    run = recorded(tmp_path, [in_a_row(ONE[:16], 3), in_a_row(OTHER[:16], 3)], group_ranks=2, workers=3)
    explained = allpull.explain(run)
    finding = explained.findings[0]
    assert finding.title == (
        "The 3 loader workers of both ranks give the same samples, each of which is trained on 3 times in a row"
    )
    assert finding.ranks == []
    assert "get_worker_info()" in finding.remedy
    assert explained.healthy is None
    assert [gap for gap in run.gaps if "loader workers of both ranks give the same samples" in gap]


@pytest.mark.parametrize(
    ("batches", "workers"),
    [
        pytest.param(ONE, 2, id="a share each"),
        pytest.param(in_a_row(ONE, 2), None, id="no iterable data set"),
        pytest.param(in_a_row(ONE, 2), 1, id="one worker"),
        pytest.param(in_a_row(ONE, 2), 0, id="no worker"),
        pytest.param(in_a_row(ONE, 2), 3, id="another number of workers"),
        pytest.param(ONE[:8] + in_a_row(ONE, 2), 2, id="out of turn"),
        pytest.param(4 * ONE[:8], 2, id="one batch again and again"),
        pytest.param(2 * ONE[:8], 2, id="too few batches"),
    ],
)
def test_no_other_workers_are_told_so(tmp_path: Path, batches: str, workers: int | None) -> None:
    other = OTHER[: len(batches)]
    assert said(recorded(tmp_path, [batches, other], group_ranks=2, workers=workers)) == ([], [])


def test_one_of_the_ranks_has_such_workers(tmp_path: Path) -> None:
    run = recorded(tmp_path, [in_a_row(ONE, 2), OTHER, THIRD], group_ranks=3, workers=2)
    finding = allpull.explain(run).findings[0]
    assert finding.title.startswith("The 2 loader workers of rank 0 give the same samples")
    assert finding.ranks == [0]


@pytest.mark.torch
@pytest.mark.slow
def test_real_ranks(tmp_path: Path, run_cli: Callable[..., Any]) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    titles: dict[str, list[str]] = {}
    notes: dict[str, int] = {}
    for which in ("same", "stream", "repeated", "divided", "right", "by hand", "constant"):
        out = tmp_path / which
        done = run_cli("run", "-n", "2", "--out", str(out), "--", "train.py", which, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        titles[which], told = said(allpull.open_run(next(out.iterdir())))
        notes[which] = len(told)
    accused = ["Both ranks train on the same samples, and their gradients are averaged"]
    repeats = ["The 3 loader workers of both ranks give the same samples, each of which is trained on 3 times in a row"]
    assert {which: told for which, told in titles.items() if told} == {
        "same": accused,
        "stream": accused,
        "repeated": repeats,
    }
    assert notes == {**dict.fromkeys(titles, 0), "by hand": 1}
