"""How a host's ranks ended is what its agent and its ranks wrote, as far as that makes sense."""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from allpull.rundir import layout
from allpull.rundir.read.endings import agent_ending, agent_endings, has_ended, last_exception

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["rank", "exit_code", "x"]), inner),
    max_leaves=8,
)


@given(st.fixed_dictionaries(dict.fromkeys(["host", "code", "index", "failures", "reason", "versions"], JSON)))
def test_whatever_a_file_holds_is_a_sensible_ending_or_none(tmp_path_factory, fields):
    root = tmp_path_factory.mktemp("run")
    path = root / layout.ended_file("n1")
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(fields))
    ending = agent_ending(root, "n1")
    assert agent_endings(root) == ([] if ending is None else [ending])
    if ending is not None:
        assert (type(ending.host), type(ending.code), type(ending.index)) == (str, int, int)
        assert all(type(number) is int for pair in ending.exit_codes.items() for number in pair)


def test_the_last_exception_that_is_whole_counts(tmp_path: Path) -> None:
    first = {"kind": "exception", "type": "ValueError", "message": "first", "t_ns": 1}
    lines = [{"kind": "exception"}, first, {**first, "message": 2}, {"kind": "remark", "text": '"exception"'}]
    (tmp_path / layout.EVENTS).mkdir()
    (tmp_path / layout.events_file(0)).write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"kind": "exc')
    exception = last_exception(tmp_path, 0)
    assert exception is not None
    assert exception.message == "first"
    assert has_ended(tmp_path, 0)
    assert last_exception(tmp_path, 1) is None
    assert not has_ended(tmp_path, 1)
