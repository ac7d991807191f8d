"""Options that cannot be had together are refused before anything starts, with the option to change first."""

from __future__ import annotations

from typing import Any

import pytest

from allpull.config.checks import find_contradictions
from allpull.config.typed import build
from allpull.schema.spec import RunSpec


@pytest.mark.parametrize(
    ("plain", "option"),
    [
        ({"data": {"size": 160, "first_size": 224}}, "data.first_size"),
        ({"data": {"growth_epochs": 3}}, "data.growth_epochs"),
        ({"data": {"size": 224, "test_resize": 200}}, "data.test_resize"),
        ({"data": {"mixed": 4}}, "data.mixed"),
        ({"data": {"name": "pack", "bands": 12}}, "data.bands"),
        ({"data": {"mixup": 0.2}, "train": {"log_accuracy": True}}, "train.log_accuracy"),
        ({"data": {"name": "synthetic", "multi_label": True}, "train": {"stop_at_top1": 0.5}}, "train.stop_at_top1"),
        ({"train": {"schedule": "milestones"}}, "train.milestones"),
        ({"train": {"milestones": [30, 60]}}, "train.milestones"),
        (
            {"train": {"schedule": "milestones", "milestones": [3], "warmup_epochs": 5}},
            "train.warmup_epochs",
        ),
        ({"data": {"first_size": 64}, "model": {"name": "resnet50", "head": "flatten"}}, "data.first_size"),
        ({"data": {"size": 120, "test_size": 128}, "model": {"name": "resnet50", "head": "flatten"}}, "data.test_size"),
        ({"data": {"first_size": 64, "growth_epochs": 10}, "train": {"epochs": 10}}, "data.growth_epochs"),
        ({"data": {"first_size": 64}, "train": {"epochs": 1}}, "data.growth_epochs"),
        ({"model": {"name": "resnet18", "zero_init": True, "norm": "none"}}, "model.zero_init"),
        ({"model": {"name": "inception_v3", "norm_scale": False, "norm": "none"}}, "model.norm_scale"),
        ({"model": {"head": "flatten"}}, "model.head"),
        ({"model": {"name": "vgg16", "stride": "v1"}}, "model.stride"),
        ({"train": {"nesterov": True, "momentum": 0.0}}, "train.nesterov"),
        ({"train": {"precision": "bf16"}, "model": {"dtype": "float64"}}, "train.precision"),
        ({"train": {"sync_norm": True}, "model": {"norm": "group"}}, "train.sync_norm"),
        ({"train": {"ema_every": 5}}, "train.ema_every"),
        ({"train": {"accumulate": 8, "batch": 4}}, "train.accumulate"),
        ({"train": {"accumulate": 8, "global_batch": 4}}, "train.accumulate"),
        ({"train": {"cuda_graph": True, "accumulate": 2}}, "train.cuda_graph"),
        ({"train": {"cuda_graph": True, "compile": "max-autotune"}}, "train.cuda_graph"),
        ({"train": {"compile": "default"}, "parallel": {"bucket_mb": [0.5, 25]}}, "parallel.bucket_mb"),
        ({"train": {"compile": "default"}, "parallel": {"static_graph": True}}, "parallel.static_graph"),
        ({"train": {"precision": "o2"}, "parallel": {"compression": "powersgd"}}, "parallel.compression"),
        ({"train": {"accumulate": 2}, "parallel": {"static_graph": True}}, "parallel.static_graph"),
        ({"parallel": {"overlap": False, "compression": "powersgd"}}, "parallel.compression"),
        ({"parallel": {"overlap": False, "broadcast_buffers": True}}, "parallel.broadcast_buffers"),
        ({"parallel": {"strategy": "fsdp", "batched_copy": True}}, "parallel.batched_copy"),
        ({"parallel": {"strategy": "fsdp", "bucket_mb": 1}}, "parallel.bucket_mb"),
        ({"parallel": {"strategy": "fsdp"}, "train": {"precision": "o2"}}, "train.precision"),
        ({"parallel": {"strategy": "fsdp"}, "train": {"cuda_graph": True}}, "train.cuda_graph"),
        (
            {"parallel": {"backend": "gloo"}, "train": {"cuda_graph": True}, "launch": {"ranks": 2}},
            "train.cuda_graph",
        ),
    ],
)
def test_what_cannot_be_had_together_is_named(plain: dict[str, Any], option: str) -> None:
    (found,) = find_contradictions(build(RunSpec, plain, "x"))
    assert found.startswith(f"{option}: ")


@pytest.mark.parametrize(
    "plain",
    [
        {"data": {"size": 224, "first_size": 112, "growth_epochs": 5, "test_resize": 256}},
        {"train": {"accumulate": 4, "ema_half_life": 100.0, "ema_every": 5, "sync_norm": True, "precision": "bf16"}},
        {"parallel": {"overlap": False, "compression": "bf16"}},
        {"parallel": {"backend": "gloo"}, "train": {"cuda_graph": True}, "launch": {"ranks": 1}},
        {"parallel": {"backend": "gloo", "strategy": "fsdp"}, "launch": {"ranks": 2}},
        {"parallel": {"strategy": "fsdp"}, "train": {"accumulate": 2, "evaluation": "serial", "precision": "bf16"}},
        {"parallel": {"bucket_mb": [1, 25], "compression": "powersgd"}},
    ],
)
def test_what_goes_together_is_let_through(plain: dict[str, Any]) -> None:
    assert find_contradictions(build(RunSpec, plain, "x")) == []
