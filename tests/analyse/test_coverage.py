"""Epochs are counted where the program has any."""

from __future__ import annotations

from pathlib import Path

from tests.explain.rules.test_no_exchange import unrelated


def test_a_loop_without_epochs_has_none(tmp_path: Path) -> None:
    run = unrelated(tmp_path)
    observed = run.metrics().observed
    assert observed is not None
    assert observed.epochs == 0
