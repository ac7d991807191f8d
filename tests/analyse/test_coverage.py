"""Epochs are counted where the program has any, and steps that were not recorded are told from those that were."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.explain.rules.test_no_exchange import unrelated

from allpull.api.runs import open_run


def test_a_loop_without_epochs_has_none(tmp_path: Path) -> None:
    run = unrelated(tmp_path)
    observed = run.metrics().observed
    assert observed is not None
    assert observed.epochs == 0


def test_steps_that_were_not_kept_are_told(tmp_path: Path, run_here) -> None:
    """As where a budget thinned them: one in four is left of each rank."""
    whole, thinned = Path(__file__).parents[1] / "runs" / "v1.0", tmp_path / "thinned"
    shutil.copytree(whole, thinned)
    for file in thinned.glob("steps/*.jsonl"):
        header, *lines = file.read_text().splitlines(keepends=True)
        file.write_text("".join([header, *lines[::4]]))
    made, kept = (open_run(one).metrics().observed for one in (whole, thinned))
    assert made is not None
    assert kept is not None
    assert made.steps == made.steps_made == kept.steps_made == 4 * kept.steps
    said = " ".join(run_here("show", str(thinned), cwd=tmp_path).stdout.split())
    assert f"{kept.steps} of {made.steps} steps were recorded" in said
    assert "were recorded" not in run_here("show", str(whole), cwd=tmp_path).stdout
