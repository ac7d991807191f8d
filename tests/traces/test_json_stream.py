"""JSON in pieces is JSON: the same values wherever a piece ends, and of what is cut off, what stood before."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allpull.traces import json_stream
from allpull.traces.json_stream import Text, members

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
documents = st.dictionaries(st.text(), values, max_size=5)


def text_of(blob: bytes, size: int = 7) -> Text:
    file = io.BytesIO(blob)
    return Text(lambda _: file.read(size))


def whole(blob: bytes, lists: tuple[str, ...] = (), size: int = 7) -> list[tuple[str, Any]]:
    return list(members(text_of(blob, size), lists))


@given(documents, st.integers(1, 30), st.sampled_from([None, 1]))
def test_members_are_those_of_the_document(document: dict[str, Any], size: int, indent: int | None) -> None:
    blob = json.dumps(document, indent=indent).encode()
    assert dict(whole(blob, size=size)) == document


@given(st.lists(st.dictionaries(st.text(), values, max_size=3), max_size=6), st.integers(1, 30))
def test_elements_of_a_chosen_list_come_one_by_one(elements: list[Any], size: int) -> None:
    blob = json.dumps({"before": [1], "events": elements, "after": {"x": 2}}).encode()
    named = [("events", element) for element in elements]
    assert whole(blob, ("events",), size) == [("before", [1]), *named, ("after", {"x": 2})]
    assert whole(json.dumps(elements).encode(), (), size) == [("", element) for element in elements]


@given(st.lists(values, min_size=1, max_size=5), st.data())
def test_of_a_document_that_is_cut_off_comes_what_stood_before(elements: list[Any], data: st.DataObject) -> None:
    blob = json.dumps({"events": elements}).encode()
    cut = data.draw(st.integers(0, len(blob) - 1))
    found = list(_until_damage(text_of(blob[:cut])))
    assert found == [*elements[: len(found) - 1], DAMAGE]


DAMAGE = object()


def _until_damage(text: Text) -> Iterator[Any]:
    try:
        yield from (value for _, value in members(text, ("events",)))
    except ValueError:
        yield DAMAGE


@given(st.binary(max_size=200))
def test_of_any_bytes_it_gives_values_or_one_kind_of_error(blob: bytes) -> None:
    try:
        whole(blob, ("events",))
    except ValueError:
        pass


def test_numbers_that_json_does_not_have_are_not_measured() -> None:
    assert whole(b'{"a": NaN, "b": [Infinity, -Infinity, 1]}') == [("a", None), ("b", [None, None, 1])]


@pytest.mark.parametrize(
    ("blob", "says"),
    [
        (b"", "it is empty"),
        (b"   ", "it is empty"),
        (b"7", "neither an object nor a list"),
        (b'{"a": 1', "it is truncated"),
        (b'{"a": [1, 2', "it is truncated"),
        (b'{"a" 1}', "':' was expected"),
        (b"{7: 1}", "name of a member"),
        (b'{"a": ' + b"[" * 200_000, "nested too deeply"),
        (b'{"a": ' + b'{"b":' * 200_000, "nested too deeply"),
        (b'{"a": 1' + b"0" * 5_000 + b"}", "too many digits"),
    ],
)
def test_what_is_wrong_is_said(blob: bytes, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        whole(blob, size=1 << 16)


def test_a_value_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_stream, "MAX_VALUE", 1000)
    with pytest.raises(ValueError, match="more than 1,000 characters"):
        whole(b'{"a": "' + b"x" * 5000, size=100)
