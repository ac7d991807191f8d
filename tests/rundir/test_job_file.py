"""The job file: one record, read as it was written, and unreadable secrets once the job has ended."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path

import pytest

from allpull.rundir import layout
from allpull.rundir.job_file import SECRETS_VARIABLE, JobFile, WatchOptions

PROGRAM = JobFile(
    directory="/runs/a",
    nonce="0123456789abcdef",
    ranks=4,
    port=29500,
    bind="cores",
    interface="eth0",
    max_restarts=2,
    counters=True,
    counter_interval_s=0.5,
    budget=1 << 20,
    warmup_steps=3,
    options={"sizes": [1, 2]},
    spec={"launch": {"threads": 1}},
    command=("python", "train.py", "--token", "abc"),
    cwd="/home/me",
    watch=WatchOptions(trace_every=8, trace_steps=2, trace_first=1, steps=(3, None)),
)


@pytest.mark.parametrize("job", [PROGRAM, replace(PROGRAM, command=()), JobFile(directory="/runs/b", module="m")])
def test_it_is_read_as_it_was_written(tmp_path: Path, job: JobFile) -> None:
    path = str(tmp_path / "spec.json")
    job.write(path)
    assert JobFile.read(path) == job


def test_a_job_of_our_own_modules_has_no_command_in_its_file() -> None:
    plain = JobFile(directory="/runs/b", module="m", nonce="n").to_plain()
    assert set(plain) == {one.name for one in fields(JobFile)} - {"command", "cwd", "carried", "watch", "id", "masked"}


def test_fields_of_another_version_are_left_out() -> None:
    assert JobFile.from_plain({"directory": "/runs/b", "later": 1}) == JobFile(directory="/runs/b")


def test_a_sealed_file_has_neither_the_nonce_nor_a_secret_of_the_command(tmp_path: Path) -> None:
    path = tmp_path / "spec.json"
    PROGRAM.sealed({"name": "[redacted]"}).write(str(path))
    plain = json.loads(path.read_text())
    assert "nonce" not in plain
    assert plain["command"] == ["python", "train.py", "--token", "[redacted]"]
    assert plain["spec"] == {"name": "[redacted]"}
    assert PROGRAM.nonce not in path.read_text()


def test_what_is_kept_has_no_secret_and_is_whole_again_with_those_that_are_handed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = replace(PROGRAM, id="1f", spec={"launch": {"threads": 1}, "data": {"path": "https://me:pw1@host/x"}})
    kept = whole.kept({"launch": {"threads": 1}, "data": {"path": "https://[redacted]@host/x"}})
    path, secrets = tmp_path / "job/spec.json", whole.secrets(kept)
    path.parent.mkdir()
    kept.write(str(path))
    assert not [secret for secret in (whole.nonce, "abc", "pw1") if secret in path.read_text()]
    assert JobFile.read(str(path)) == kept
    assert JobFile.read(str(path)).masked
    assert JobFile.read(str(path), secrets) == whole
    monkeypatch.setenv(SECRETS_VARIABLE, secrets)
    assert JobFile.read(str(path)) == whole
    monkeypatch.setenv(SECRETS_VARIABLE, secrets.replace('"1f"', '"2f"'))  # an allpull inside another's job
    assert JobFile.read(str(path)).masked
    (tmp_path / layout.SECRETS).write_text(secrets)
    assert JobFile.read(str(path)) == whole


@pytest.mark.parametrize("content", ["[]", "{}", '{"directory": 1}', '{"directory": "/runs/b"'])
def test_what_is_no_job_file_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "spec.json"
    path.write_text(content)
    with pytest.raises(ValueError):
        JobFile.read(str(path))
