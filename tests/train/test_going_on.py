"""A job that a queue gave back goes on from its own run directory, if there is anything to go on from."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from allpull.schema.spec import RunSpec, TrainSpec
from allpull.train.__main__ import going_on


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
    found = going_on(spec, tmp_path)
    assert found.train.resume == (str(tmp_path) if goes_on else "/another/run")
    assert found.train.epochs == 3
