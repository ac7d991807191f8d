"""``allpull study audit`` as it is typed."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from allpull.cli import app

HEADER = "series,gpus,batch_per_gpu,images_per_sec,speedup,efficiency,train_time_s,notes\n"


def test_the_published_measurements_are_audited_and_slips_have_an_exit_code() -> None:
    shown = CliRunner().invoke(app, ["study", "audit", "--published"])
    assert shown.exit_code == 3
    assert "hal_feb" in shown.output
    assert "57.0% by training time" in " ".join(shown.output.split())


def test_a_clean_table_ends_with_zero_and_json(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(HEADER + "s,1,64,100,1.0,,,\ns,2,64,190,1.9,,,\n")
    shown = CliRunner().invoke(app, ["study", "audit", str(tmp_path / "t.csv"), "--json"])
    assert shown.exit_code == 0
    result = json.loads(shown.stdout)
    assert (result["rows"], result["findings"]) == (2, [])


def test_without_a_table_the_error_says_what_to_give() -> None:
    shown = CliRunner().invoke(app, ["study", "audit"])
    assert shown.exit_code == 2
    assert "--published" in shown.output
