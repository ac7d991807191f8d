"""Trainable parameters as the source studies state them, counted without their data."""

from __future__ import annotations

import pytest

from allpull.config.load import load_spec
from allpull.study.network_size import of_rehearsal, of_trainings


@pytest.mark.parametrize(
    ("recipe", "options", "parameters"),
    [
        ("imagenet-resnet50", [], 25_557_032),
        ("bigearthnet-resnet50", [], 23_915_115),
        ("imagenet-resnet50", ["data.name=synthetic"], 25_557_032),
    ],
)
def test_of_trainings(recipe: str, options: list[str], parameters: int) -> None:
    """ResNet-50 as in torchvision; with 12 bands and 43 labels as the CLAIX study states."""
    assert of_trainings([(recipe, load_spec(recipe, options))]) == [parameters]


def test_unknown_data() -> None:
    assert of_trainings([("my.toml", load_spec("imagenet-resnet50", ["data.path=/nowhere"]))]) == [None]


def test_of_rehearsal() -> None:
    assert of_rehearsal({"accelerator": {"model": "resnet50"}}) == 25_557_032
    assert of_rehearsal({"accelerator": {"model": "none"}}) is None
