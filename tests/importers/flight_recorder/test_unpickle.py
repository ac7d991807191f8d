"""Pickles of data are read as pickle reads them; anything that is more than data is refused before it is done."""

from __future__ import annotations

import os
import pickle
import pickletools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allpull.importers.flight_recorder.unpickle import data_of

keys = st.text() | st.integers() | st.none() | st.booleans()
data = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.tuples(inner, inner)
        | st.dictionaries(keys, inner, max_size=5)
        | st.lists(inner, max_size=6).map(tuple)
    ),
    max_leaves=25,
)


@given(data, st.integers(2, pickle.HIGHEST_PROTOCOL))
def test_data_come_back_as_pickle_has_them(value: Any, protocol: int) -> None:
    assert data_of(pickle.dumps(value, protocol=protocol)) == value


@given(st.binary())
def test_bytes_come_back_where_pickle_has_a_code_for_them(value: bytes) -> None:
    assert data_of(pickle.dumps([value], protocol=4)) == [value]
    with pytest.raises(ValueError, match="refused"):  # older ones call a function of codecs
        data_of(pickle.dumps([value], protocol=2))


def test_parts_may_be_shared() -> None:
    shared = ["a"]
    found = data_of(pickle.dumps({"one": shared, "two": shared}))
    assert found["one"] is found["two"]


class Sly:
    """Runs a command when it is unpickled."""

    def __reduce__(self) -> Any:
        return os.mkdir, (os.environ["SLY"],)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_nothing_is_called(tmp_path: Any, monkeypatch: pytest.MonkeyPatch, protocol: int) -> None:
    monkeypatch.setenv("SLY", str(tmp_path / "made"))
    blob = pickle.dumps({"entries": [Sly()]}, protocol=protocol)
    with pytest.raises(ValueError, match="refused: this pickle does more than hold data"):
        data_of(blob)
    assert not (tmp_path / "made").exists()
    pickle.loads(blob)  # which would have done it
    assert (tmp_path / "made").exists()


@pytest.mark.parametrize(
    "value", [object(), Exception("x"), complex(1, 2), range(3), {1, 2}.__class__, frozenset({1}), os.path.join]
)
def test_no_class_is_looked_up(value: Any) -> None:
    with pytest.raises(ValueError, match="refused"):
        data_of(pickle.dumps(value))


def opcode(name: str) -> bytes:
    return next(one.code for one in pickletools.opcodes if one.name == name).encode("latin-1")


@pytest.mark.parametrize(
    "blob",
    [
        b"",
        b"\x80\x04",
        b"\x80\x04.",
        b"\x80\x04]a.",
        b"\x80\x04(}u",
        b"\x80\x04}(K\x01u.",
        b"\x80\x04]}s.",
        b"\x80\x04h\x07.",
        b"\x80\x04e.",
        b"\x80\x04\x86.",
        b"\x80\x04}(]K\x01u.",  # a list as a key
        b"\x80\x04" + opcode("BINBYTES8") + (2**60).to_bytes(8, "little") + b"x.",
        b"\x80\x04" + opcode("BYTEARRAY8") + (2**60).to_bytes(8, "little") + b"x.",
        b"\x80\x04" + opcode("FRAME") + (2**60).to_bytes(8, "little") + b".",
        b"\x80\x04N" + opcode("LONG_BINPUT") + (2**32 - 1).to_bytes(4, "little"),
        b"\x80\x04I" + b"9" * 10_000 + b"\n.",
        b"P1\n.",
        b"\x80\x04" + opcode("EXT1") + b"\x01.",
    ],
)
def test_damage_is_one_kind_of_error(blob: bytes) -> None:
    with pytest.raises(ValueError):
        data_of(blob)


@given(st.binary(max_size=300))
def test_of_any_bytes_too(blob: bytes) -> None:
    try:
        data_of(b"\x80\x04" + blob)
    except ValueError:
        pass


@given(data, st.data())
def test_a_pickle_that_is_cut_off_is_said_to_be(value: Any, drawn: st.DataObject) -> None:
    blob = pickle.dumps(value)
    with pytest.raises(ValueError):
        data_of(blob[: drawn.draw(st.integers(0, len(blob) - 1))])
