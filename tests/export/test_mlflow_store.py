"""A run as MLflow's own client reads it back from its database, and names that MLflow would refuse."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.scripts.conftest import with_frameworks

from allpull.errors import BadInput, MissingPart
from allpull.export import mlflow_store
from allpull.export.curves import Curve

READ = """
import json, sys
from mlflow import MlflowClient
client = MlflowClient(tracking_uri=sys.argv[1])
found = []
for one in client.search_runs([client.get_experiment_by_name("allpull").experiment_id]):
    of = {key: [[p.timestamp, p.step, p.value] for p in client.get_metric_history(one.info.run_id, key)]
          for key in one.data.metrics}
    found.append({"status": one.info.status, "begin": one.info.start_time, "end": one.info.end_time,
                  "name": one.info.run_name, "params": one.data.params, "tags": one.data.tags, "metrics": of,
                  "artifacts": sorted(a.path for a in client.list_artifacts(one.info.run_id)),
                  "explain": open(client.download_artifacts(one.info.run_id, "explain.json")).read()})
print(json.dumps(found))
"""


@pytest.mark.slow
def test_mlflow_has_configuration_curves_tags_and_artifacts(copied: Callable[[str], Path], tmp_path: Path) -> None:
    quiet = {"MLFLOW_DISABLE_TELEMETRY": "true"}
    env = {**os.environ, **with_frameworks("mlflow-skinny", "sqlalchemy", "alembic"), **quiet}
    run = copied("v1.0")
    events = run / "events/rank-00000.jsonl"
    events.write_text(events.read_text().replace('"test_top1"', '"../a=b;\\u001b[1m"'))
    record = json.loads((run / "run.json").read_text())
    planted = [("step/step_s", -(2**62)), ("step//step_s", 0)]  # as a curve of ours is called; centuries before 1970
    with events.open("a") as file:
        for name, t_ns in planted:
            line = {"kind": "metric", "name": name, "value": 7.0, "step": 0, "epoch": 0, "t_ns": t_ns}
            file.write(json.dumps(line) + "\n")

    def export(*more: str) -> subprocess.CompletedProcess[str]:
        words = ["allpull", "export", str(run), "--to", "mlflow", "--out", str(tmp_path / "ml"), *more]
        return subprocess.run([sys.executable, "-m", *words], env=env, capture_output=True, text=True, check=False)

    done = export()
    assert done.returncode == 0, done.stderr
    uri = done.stdout.split()[0]
    again = export()
    assert again.returncode == 2
    assert "--replace" in again.stderr
    assert export("--replace").returncode == 0
    read = [sys.executable, "-c", READ, uri]
    (found,) = json.loads(subprocess.run(read, env=env, capture_output=True, text=True, check=True).stdout)
    assert found["status"] == "FINISHED"
    assert found["name"] == record["name"]
    assert found["params"]["ranks"] == str(record["ranks"])
    assert found["params"]["train.epochs"] == str(record["spec"]["train"]["epochs"])
    assert found["tags"]["allpull.run"] == "v1.0"
    assert found["artifacts"] == ["explain.json", "report.html", "tables"]
    assert json.loads(found["explain"])["run"] == record["id"]
    header, *steps = [json.loads(line) for line in (run / "steps/rank-00000.jsonl").read_text().splitlines()]
    offset = header["clock"]["realtime_ns"] - header["clock"]["monotonic_ns"]
    for timestamp, number, value in found["metrics"]["system/rank-00000/step/step_s"]:
        step = next(one for one in steps if one["step"] == number)
        assert timestamp == pytest.approx((step["end_ns"] + offset) / 1e6, abs=1.001)
        assert value == pytest.approx((step["end_ns"] - step["begin_ns"]) / 1e9)
    losses = [json.loads(line) for line in events.read_text().splitlines() if '"train_loss"' in line]
    assert [(step, value) for _, step, value in sorted(found["metrics"]["train_loss"])] == [
        (one["step"], one["value"]) for one in losses
    ]
    assert "a_b_" in found["metrics"]
    assert 7.0 not in [value for _, _, value in found["metrics"]["step/step_s"]]
    assert found["metrics"]["step/step_s-2"] == [[0, 0, 7.0]]
    assert [point[1:] for point in found["metrics"]["step/step_s-3"]] == [[0, 7.0]]
    refused = subprocess.run(
        [sys.executable, "-m", "allpull", "export", str(run), "--to", "mlflow", "--out", "file:///proc/none"],
        env=env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert refused.returncode == 2
    assert "MLflow at file:///proc/none" in refused.stderr
    unreachable = subprocess.run(
        [sys.executable, "-m", "allpull", "export", str(run), "--to", "mlflow", "--out", "http://me:s3cret@127.0.0.1:9"],
        env={**env, "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert unreachable.returncode == 2
    assert "[redacted]@127.0.0.1" in unreachable.stderr
    assert "s3cret" not in unreachable.stderr + unreachable.stdout


def test_without_the_package_one_line_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(MissingPart) as missing:
        mlflow_store.client("sqlite:////nowhere/mlflow.db")
    assert "pip install 'allpull[mlflow]'" in missing.value.hint


@pytest.mark.parametrize(
    ("owner", "name", "key"),
    [
        ("job", "train_loss", "train_loss"),
        ("rank-00003", "phase/wait_s", "system/rank-00003/phase/wait_s"),
        ("job", "../../etc", "etc"),
        ("job", "/a//b\x00=", "a/b__"),
        ("job", "..", "_"),
        ("job", "x" * 300, "x" * 249),
    ],
)
def test_names_of_metrics_are_ones_that_mlflow_accepts(owner: str, name: str, key: str) -> None:
    empty = np.zeros(0)
    made = mlflow_store.metric_key(Curve(owner=owner, name=name, steps=empty.astype(int), unix_s=empty, values=empty))
    assert made == key


def test_an_option_whose_name_is_a_path_does_not_keep_a_run_from_mlflow() -> None:
    texts = {"../../x": "1", "a.b": "2", "versions/..": "3\x1b[31m"}
    assert dict(mlflow_store._texts(texts)) == {"x": "1", "a.b": "2", "versions": "3"}


def test_options_that_come_under_one_name_are_told_apart() -> None:
    """MLflow refuses a whole run in which one parameter has two values."""
    assert dict(mlflow_store._texts({"x": "1", "../x": "2", "x-2": "3"})) == {"x": "1", "x-2": "2", "x-2-2": "3"}


def test_a_password_in_the_address_of_a_server_is_in_no_error() -> None:
    uri = "http://me:s3cret@host/"
    with pytest.raises(BadInput) as refused, mlflow_store._refusals(uri):
        raise OSError(f"cannot reach {uri}api")
    assert "s3cret" not in refused.value.message
    assert "[redacted]@host" in refused.value.message
