"""What a program remarks is kept, redacted and shown to whoever reads the run or watches it."""

from __future__ import annotations

import json
from pathlib import Path

from allpull import marks
from allpull.rundir import layout
from allpull.rundir.live.tail import Follower


def test_nobody_listening_a_remark_is_nothing() -> None:
    assert marks.remark("unheard") is None


def test_a_remark_reaches_who_follows_the_run(tmp_path: Path) -> None:
    path = tmp_path / layout.events_file(0)
    path.parent.mkdir(parents=True)
    lines = [{"kind": "remark", "text": "steps are made call by call", "t_ns": 1}, {"kind": "remark", "text": 5}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    follower = Follower(tmp_path)
    assert list(follower.epochs()) == []
    assert follower.remarks() == ["steps are made call by call"]
    assert follower.remarks() == []
