"""A specification is built from anything, or every fault in it is said."""

from __future__ import annotations

import dataclasses
import datetime as dt
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allpull.config.typed import INT64, MAX_FAULTS, MAX_TEXT, build, find_faults, model_of, options, show
from allpull.errors import ConfigError
from allpull.schema.option import option
from allpull.schema.spec import LaunchSpec, ObserveSpec, RunSpec, from_plain, to_plain
from allpull.schema.trainspec import DataSpec, TrainSpec

TABLES = {"data": DataSpec, "train": TrainSpec, "launch": LaunchSpec, "observe": ObserveSpec}
BOUNDED = [
    (f"{table}.{item.name}", kind, item)
    for table, kind in TABLES.items()
    for item in dataclasses.fields(kind)
    if item.metadata["bounds"]
]


OPTIONS = ", ".join(item.name for item in dataclasses.fields(RunSpec))


def faults_of(plain: object) -> list[str]:
    return find_faults(RunSpec, plain)


def nested(path: str, value: object) -> dict[str, Any]:
    table, _, name = path.rpartition(".")
    return {table: {name: value}} if table else {name: value}


def test_nothing_said_gives_the_defaults() -> None:
    assert build(RunSpec, {}, "nothing") == RunSpec()


def test_every_default_is_accepted_when_it_is_said() -> None:
    assert build(RunSpec, to_plain(RunSpec()), "defaults") == RunSpec()


@pytest.mark.parametrize(("path", "kind", "item"), BOUNDED, ids=[path for path, _, _ in BOUNDED])
def test_each_bound_holds_at_its_edge_and_not_beyond(path: str, kind: type, item: Any) -> None:
    whole = type(item.default) is int
    for name, bound in item.metadata["bounds"].items():
        step = 1 if whole else max(abs(bound), 1e-9) * 1e-6
        outward = step if name in {"le", "lt"} else -step
        closed = name in {"le", "ge"}
        inside, outside = (bound, bound + outward) if closed else (bound - outward, bound)
        assert faults_of(nested(path, inside)) == []
        (fault,) = faults_of(nested(path, outside))
        assert fault.startswith((f"{path}: expected ", f"{path}.0: expected "))  # of a list, its first
        assert f"{bound:,}" in fault
        assert fault.endswith(f"found {outside}")


def test_a_whole_number_may_stand_for_a_number() -> None:
    lr = build(RunSpec, {"train": {"lr": 1}}, "x").train.lr
    assert lr == 1.0
    assert type(lr) is float


@pytest.mark.parametrize(
    ("path", "value", "expected", "found"),
    [
        ("train.epochs", True, "a whole number", "true"),
        ("train.epochs", "3", "a whole number", "'3'"),
        ("train.epochs", 3.0, "a whole number", "3.0"),
        ("train.lr", "0.1", "a number", "'0.1'"),
        ("train.lr", False, "a number", "false"),
        ("train.lr", float("nan"), "a number", "nan"),
        ("train.step_epochs", float("inf"), "a number", "inf"),
        ("train.batch", 2**63, "a whole number", "a number too large for 64 bits"),
        ("data.flip", 1, "true or false", "1"),
        ("data.flip", "true", "true or false", "'true'"),
        ("name", 5, "text", "5"),
        ("name", ["a"], "text", "an array"),
        ("train", 3, "a table", "3"),
        ("train", [{"epochs": 3}], "a table", "an array"),
        ("train.epochs", {"a": 1}, "a whole number", "a table"),
        ("model.norm", "layer", "'batch' or 'group' or 'none'", "'layer'"),
        ("model.norm", "\udcff", "'batch' or 'group' or 'none'", r"'\udcff'"),
        ("train.lr", dt.date(2026, 1, 2), "a number", "2026-01-02"),
        ("name", None, "text", "nothing"),
    ],
)
def test_a_wrong_type_is_said_with_what_was_expected_and_found(
    path: str, value: object, expected: str, found: str
) -> None:
    (fault,) = faults_of(nested(path, value))
    assert fault.startswith(f"{path}: expected {expected}")
    assert fault.endswith(f"; found {found}")


@pytest.mark.parametrize(
    ("plain", "fault"),
    [
        ({"trian": {}}, "trian: no such option; did you mean 'train'?"),
        ({"train": {"epoch": 1}}, "train.epoch: no such option; did you mean 'train.epochs'?"),
        ({"epochs": 1}, "epochs: no such option; did you mean 'train.epochs'?"),
        ({"data": {"batch": 1}}, "data.batch: no such option; did you mean 'train.batch'?"),
        ({"width": 1}, "width: no such option; did you mean 'model.width'?"),
        ({"zzz": 1}, f"zzz: no such option; known here: {OPTIONS}"),
        ({"a.b\n": 1}, f"'a.b\\n': no such option; known here: {OPTIONS}"),
        ({5: 1}, "5: the name of an option must be text"),
        (None, "the whole: expected a table; found nothing"),
    ],
)
def test_an_unknown_option_is_said_with_the_nearest(plain: object, fault: str) -> None:
    assert faults_of(plain) == [fault]


def test_all_faults_are_said_at_once() -> None:
    plain = {
        "name": 1,
        "train": {"epochs": 0, "momentun": 0.9, "lr": "fast"},
        "launch": {"ranks": True},
        "observ": {},
    }
    with pytest.raises(ConfigError) as caught:
        build(RunSpec, plain, "my.toml")
    starts = [fault.split(":")[0] for fault in caught.value.faults]
    assert sorted(starts) == ["launch.ranks", "name", "observ", "train.epochs", "train.lr", "train.momentun"]
    assert str(caught.value).startswith("my.toml: 6 faults\n  ")


def test_a_flood_of_faults_is_counted_not_listed() -> None:
    faults = faults_of({f"x{number}": 1 for number in range(MAX_FAULTS + 1234)})
    assert len(faults) == MAX_FAULTS + 1
    assert faults[-1] == "and 1,234 more"


@pytest.mark.parametrize(
    ("value", "kept"), [([], ()), (["a b", "c"], ("a b", "c")), (("a",), ("a",)), ("one text", ("one text",))]
)
def test_a_list_of_texts_is_kept_in_order(value: object, kept: tuple[str, ...]) -> None:
    assert build(RunSpec, {"slurm": {"modules": value}}, "x").slurm.modules == kept


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        (5, "slurm.modules: expected a list of at most 256 texts; found 5"),
        ({"a": 1}, "slurm.modules: expected a list of at most 256 texts; found a table"),
        (["x"] * 257, "slurm.modules: expected a list of at most 256 texts; found an array"),
        (
            ["a", 5],
            "slurm.modules.1: expected text of at most 1,024 characters, none of them a control character; found 5",
        ),
        (["a\nb"], "slurm.modules.0: expected text of at most 1,024 characters"),
    ],
)
def test_what_is_no_list_of_texts_is_said(value: object, fault: str) -> None:
    (found,) = faults_of({"slurm": {"modules": value}})
    assert found.startswith(fault)


@pytest.mark.parametrize("hidden", ["\x1b[2J", "\x00", "\n", "\x7f", "\x9b", "\u202e", "\u2028", "\udc80"])
def test_text_that_would_act_on_a_terminal_is_refused_and_shown_harmless(hidden: str) -> None:
    (fault,) = faults_of({"name": f"run{hidden}1"})
    assert fault.startswith("name: expected text")
    assert fault.isprintable()


@pytest.mark.parametrize("name", ['the "best" run', "<b>bold</b> & co", "Größe 大 🚣", "it's [red]"])
def test_text_that_only_looks_odd_is_kept(name: str) -> None:
    assert build(RunSpec, {"name": name}, "x").name == name


def test_text_is_bounded_and_shown_short() -> None:
    assert faults_of({"name": "a" * MAX_TEXT}) == []
    (fault,) = faults_of({"name": "a" * (MAX_TEXT + 1)})
    assert len(fault) < 300


def test_a_fault_of_an_override_names_the_override() -> None:
    origins = {"train.epochs": "--set train.epochs=0"}
    faults = find_faults(RunSpec, {"train": {"epochs": 0, "lr": 0}}, origins=origins)
    assert [fault.endswith(" (set by --set train.epochs=0)") for fault in faults] == [True, False]


@dataclass(frozen=True, kw_only=True)
class _Needs:
    size: int = dataclasses.field(metadata={"help": "", "bounds": {"ge": 1}})
    flag: bool = option(False, "a flag")


def test_an_option_without_default_must_be_given() -> None:
    assert find_faults(_Needs, {}) == ["size: missing; expected a whole number, at least 1"]
    assert build(_Needs, {"size": 2}, "x") == _Needs(size=2)


def test_every_option_is_listed_with_its_help() -> None:
    listed = dict(options(RunSpec))
    leaves = {f"{table}.{item.name}" for table, kind in TABLES.items() for item in dataclasses.fields(kind)}
    assert leaves <= set(listed)
    assert all(listed.values())


KEYS = st.sampled_from([path.rpartition(".")[2] for path, _ in options(RunSpec)]) | st.text(max_size=8)
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=-INT64 * 4, max_value=INT64 * 4)
    | st.floats()
    | st.text(st.characters(), max_size=20)
    | st.binary(max_size=4)
    | st.datetimes()
    | st.sampled_from(["batch", "cosine", "float64"])
)
JUNK = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS | LEAVES, inner, max_size=4), max_leaves=12
)
TABLE_NAMES = st.sampled_from(["name", "data", "model", "train", "launch", "observe"])
ALMOST = st.dictionaries(TABLE_NAMES, JUNK | st.dictionaries(KEYS, LEAVES, max_size=3), max_size=4)


@settings(max_examples=300, deadline=None)
@given(JUNK | ALMOST)
def test_any_junk_gives_a_specification_or_its_faults(junk: Any) -> None:
    faults: tuple[str, ...] = ()
    try:
        spec = build(RunSpec, junk, "junk")
    except ConfigError as error:
        faults = error.faults
        assert faults
    assert all(fault.isprintable() for fault in faults)
    if not faults:
        assert isinstance(junk, dict)
        for table, values in junk.items():  # what was said is what is meant
            if isinstance(values, dict):
                assert all(getattr(getattr(spec, table), name) == value for name, value in values.items())
            else:
                assert getattr(spec, table) == values


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 100_000), st.floats(1e-6, 100), st.booleans(), st.sampled_from(["cosine", "step"]))
def test_a_specification_survives_its_own_plain_form(epochs: int, lr: float, flip: bool, schedule: Any) -> None:
    spec = RunSpec(data=DataSpec(flip=flip), train=TrainSpec(epochs=epochs, lr=lr, schedule=schedule))
    assert build(RunSpec, to_plain(spec), "x") == spec == from_plain(RunSpec, to_plain(spec))


def test_the_model_is_made_once() -> None:
    assert model_of(RunSpec) is model_of(RunSpec)


def test_a_long_value_is_cut() -> None:
    assert show("\x1b" * 1000).endswith("…'")
    assert len(show("\x1b" * 1000)) < 100


@pytest.mark.parametrize(("value", "kept"), [(25, (25.0,)), ([1, 25.5], (1.0, 25.5)), ([], ())])
def test_a_list_of_numbers_may_be_one_number(value: object, kept: tuple[float, ...]) -> None:
    assert build(RunSpec, {"parallel": {"bucket_mb": value}}, "x").parallel.bucket_mb == kept


@pytest.mark.parametrize("value", [[0.0], ["25"], [True], [float("inf")], "25", {"a": 1}, True])
def test_each_number_of_a_list_is_checked(value: object) -> None:
    (found,) = faults_of({"parallel": {"bucket_mb": value}})
    assert found.startswith("parallel.bucket_mb")
    assert "number" in found
