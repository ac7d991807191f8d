"""Made-up reports: ordinary, empty of measurements, and hostile."""

from __future__ import annotations

import math
import random
from typing import Any

from allpull.schema.base import tag
from allpull.schema.reported import ScalingReport

HOSTILE = "</script><script>alert(1)</script>\"'&<b>\x1b[31m\x07\x9b2J\u202e\r\nx\x00 [red]{{7*7}} ${1}"
"""What a name may hold: markup, quotes, escapes for a terminal, a bidi override, template syntax."""

STEP_S = {1: 0.120, 2: 0.134, 4: 0.163}
PHASES = ("input", "copy", "forward", "backward", "wait", "transfer", "optimizer", "evaluation", "checkpoint", "host")


def metrics(ranks: int, **changes: Any) -> dict[str, Any]:
    """A healthy run of weak scaling with 64 samples a rank."""
    times_s = sorted(step_times_s(ranks))
    step_s = times_s[200]
    rate, reference = 64 * ranks / step_s, 64 / sorted(step_times_s(1))[200]
    speedup = rate / reference
    lost_s = STEP_S.get(ranks, step_s) - STEP_S[1]
    phases: dict[str, float | None] = dict.fromkeys(PHASES)
    phases |= {"input": 0.004, "forward": 0.035, "backward": 0.066, "optimizer": 0.009, "other": 0.006}
    phases |= {"wait": 0.3 * lost_s, "transfer": 0.7 * lost_s} if ranks > 1 else {}
    interval = lambda value, share: {"value": value, "low": value * (1 - share), "high": value * (1 + share)}  # noqa: E731
    return {
        "run": f"20260312T101500_digits_n{ranks}_ab12",
        "name": "digits",
        "directory": f"runs/20260312T101500_digits_n{ranks}_ab12",
        "status": "completed",
        "ranks": ranks,
        "hosts": max(1, ranks // 4),
        "global_batch": 64 * ranks,
        "samples_per_rank_step": 64.0,
        "steady": {"used": 412 // ranks, "left_out": {"warmup": 5, "first_batch": 9, "evaluation": 10}},
        "throughput": interval(rate, 0.012),
        "step_s": {"median": step_s, "p95": times_s[380]},
        "phases": phases,
        "closure_error": 0.0021,
        "io": {"read_bytes_per_s": None, "reads_per_s": None, "storage_read_bytes_per_s": None},
        "overhead": {"share": 0.00004},
        "accuracy": 0.9778 - 0.002 * ranks,
        "accuracy_top5": 0.9972,
        "speedup": speedup,
        "speedup_interval": interval(speedup, 0.02),
        "efficiency": speedup / ranks,
        "efficiency_interval": interval(speedup / ranks, 0.02),
        "gaps": [],
        **changes,
    }


def step_times_s(ranks: int) -> list[float]:
    """Step times around those of ``STEP_S``, the slow ones further from the middle than the fast ones."""
    draws = random.Random(ranks)
    middle_s = STEP_S.get(ranks, 0.12 * (1 + 0.1 * math.log2(max(1, ranks))))
    return [middle_s * (0.97 + 0.04 * draws.gammavariate(1.4, 0.7)) for _ in range(401)]


def detail(run: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """What a report shows of ``run`` beyond its metrics."""
    epochs = list(range(1, 11))
    curve = lambda name, values: {"name": name, "epochs": epochs, "values": values}  # noqa: E731
    return {
        "metrics": run,
        "created_utc": "2026-03-12T10:15:00Z",
        "command": ["allpull", "train", "digits", "-n", str(run["ranks"])],
        "seed": 0,
        "threads_per_rank": 1,
        "versions": {"allpull": "0.1.0", "python": "3.11.2", "torch": "2.13.0", "numpy": "2.4.6", "nccl": None},
        "git": {"commit": "12cb17a0" * 5, "dirty": run["ranks"] == 2, "remote": "https://example.org/digits.git"},
        "environment": {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        "hosts": [host(f"node{index}") for index in range(run["hosts"])],
        "step_times_s": step_times_s(run["ranks"]),
        "curves": [
            curve("train_loss", [2.2 * math.exp(-epoch / (2.5 + run["ranks"] / 8)) + 0.05 for epoch in epochs]),
            curve("test_top1", [0.98 - 0.6 * math.exp(-epoch / (1.5 + run["ranks"] / 8)) for epoch in epochs]),
            curve("test_top5", [0.999 - 0.2 * math.exp(-epoch / (1.2 + run["ranks"] / 9)) for epoch in epochs]),
            curve("lr", [0.1 for _ in epochs]),
        ],
        "exit": {"code": 0},
        **changes,
    }


def host(name: str, **changes: Any) -> dict[str, Any]:
    """One machine."""
    cpu = {"model": "Example 7742 2.25 GHz", "architecture": "x86_64", "logical": 4, "physical": 2, "usable": 2}
    return {
        "schema": tag("host"),
        "host": name,
        "os": "Debian GNU/Linux 12",
        "kernel": "6.1.0",
        "cpu": {**cpu, "vector": ["avx2", "fma"]},
        "memory_bytes": 8 << 30,
        "file_system": "ext4",
        "clock_source": "tsc",
        "load_1min": 0.21,
        "fingerprint": "5f2a",
        **changes,
    }


def report(runs: list[dict[str, Any]], **changes: Any) -> ScalingReport:
    """A report of ``runs``, each as ``metrics`` gives it."""
    alone = len(runs) == 1
    plain = {
        "schema": tag("report"),
        "show": {
            "schema": tag("show"),
            "runs": runs,
            "reference": None if alone else runs[0]["run"],
            "scaling": None if alone else "weak",
            "notes": [] if alone else ["All ranks shared one machine with 2 cores: this shows the cost of sharing."],
        },
        "words": [
            "4 ranks train 2.95 times as many samples in a second as 1 rank: 74 % of perfect scaling.",
            "Most of the loss is the exchange of gradients, which takes 30 ms of each 163 ms step.",
            "The result is as good: test accuracy is 97.0 % with 4 ranks and 97.6 % with 1.",
        ],
        "details": [detail(run) for run in runs],
        **changes,
    }
    return ScalingReport.model_validate(plain)


def one() -> ScalingReport:
    """A single run, which has no speed-up."""
    nothing = dict.fromkeys(("speedup", "speedup_interval", "efficiency", "efficiency_interval"))
    return report([metrics(1, **nothing)], words=["One rank trains 533 samples in a second."])


def three() -> ScalingReport:
    """Weak scaling on 1, 2 and 4 ranks."""
    return report([metrics(1), metrics(2), metrics(4)])


def empty() -> ScalingReport:
    """Two runs of which nothing was measured."""
    absent = ("global_batch", "samples_per_rank_step", "throughput", "step_s", "closure_error", "accuracy")
    absent += ("accuracy_top5", "speedup", "speedup_interval", "efficiency", "efficiency_interval")
    runs = [
        metrics(ranks, **dict.fromkeys(absent), phases=dict.fromkeys([*PHASES, "other"]), overhead={"share": None})
        | {"status": "failed", "gaps": ["rank 1 left no steps"], "steady": {"used": 0, "left_out": {}}}
        for ranks in (1, 2)
    ]
    ended = {"code": 137, "rank": 1, "host": "node0", "signal": "SIGKILL", "log_tail": ["step 3", "Killed"]}
    bare = {"versions": {}, "git": None, "environment": {}, "hosts": [], "step_times_s": [], "curves": []}
    details = [detail(run, **bare, seed=None, threads_per_rank=None, exit=ended) for run in runs]
    return report(runs, words=[], details=details)


def hostile(text: str = HOSTILE) -> ScalingReport:
    """Two runs on equal numbers of ranks, so that labels hold their names; every free text is ``text``."""
    base = metrics(2)
    runs = [
        metrics(2, run=f"{index}{text}", name=f"{index}{text}", directory=text, status=text, gaps=[text])
        | {"phases": {**base["phases"], text: 0.01}, "steady": {"used": 9, "left_out": {text: 3}}}
        for index in range(2)
    ]
    cpu = {"model": text, "architecture": text, "vector": [text]}
    texts = {"os": text, "kernel": text, "file_system": text, "clock_source": text, "driver": text, "gpus": [text]}
    machine = host(text, cpu=cpu, fingerprint=text, nics=[{"name": text}], **texts)
    ended = {
        "code": 1,
        "rank": 0,
        "host": text,
        "signal": text,
        "exception": text,
        "hint": text,
        "log_tail": [text] * 3,
    }
    changes: dict[str, Any] = {
        "created_utc": text,
        "command": [text, text],
        "versions": {text: text},
        "git": {"commit": text, "dirty": True, "remote": text},
        "environment": {text: text},
        "hosts": [machine],
        "exit": ended,
    }
    details = [detail(run, **changes) for run in runs]
    for item in details:
        item["curves"] = [*item["curves"], {"name": text, "epochs": [1.0], "values": [0.5]}]
    made = report(runs, words=[text, text], details=details)
    return made.model_copy(update={"show": made.show.model_copy(update={"notes": [text]})})
