"""A recipe with overrides becomes one specification, or one error that says everything."""

from __future__ import annotations

import os
import sys
import tomllib
from importlib import resources
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allpull.config.load import MAX_BYTES, load_spec, recipes
from allpull.errors import AllpullError, BadInput, ConfigError, UnknownName
from allpull.schema.spec import RunSpec


def write(folder: Path, text: str | bytes) -> str:
    path = folder / "my.toml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return str(path)


def faults_of(recipe: str, *overrides: str) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        load_spec(recipe, overrides)
    assert caught.value.hint
    return caught.value.faults


def test_every_shipped_recipe_loads_and_says_what_it_is() -> None:
    shipped = recipes()
    assert {"digits", "fashion-mnist"} <= set(shipped)
    assert list(shipped) == sorted(shipped)
    for name, what in shipped.items():
        assert len(what) > 20
        assert load_spec(name).name == name


def test_a_shipped_recipe_says_what_its_file_says() -> None:
    text = resources.files("allpull.config").joinpath("recipes/digits.toml").read_text(encoding="utf-8")
    plain = tomllib.loads(text)
    spec = load_spec("digits")
    assert (spec.train.epochs, spec.train.batch) == (plain["train"]["epochs"], plain["train"]["batch"])
    assert spec.launch == RunSpec().launch


def test_digits_are_not_mirrored_and_clothes_are() -> None:
    assert not load_spec("digits").data.flip
    assert load_spec("fashion-mnist").data.flip


def test_overrides_are_toml_values_or_plain_text() -> None:
    spec = load_spec(
        "digits",
        [
            "train.epochs = 3",
            "train.lr=2e-1",
            "data.flip=true",
            "data.path=/data/my digits",
            'model.norm="group"',
            "model.dtype=float64",
            "launch.ranks=0x4",
        ],
    )
    assert (spec.train.epochs, spec.train.lr, spec.data.flip) == (3, 0.2, True)
    assert (spec.data.path, spec.model.norm, spec.model.dtype) == ("/data/my digits", "group", "float64")
    assert spec.launch.ranks == 4
    assert spec.train.batch == load_spec("digits").train.batch


def test_the_last_override_wins() -> None:
    assert load_spec("digits", ["train.epochs=3", "train.epochs=4"]).train.epochs == 4


def test_a_text_option_takes_what_looks_like_a_number() -> None:
    assert load_spec("digits", ["name=2026"]).name == "2026"
    assert load_spec("digits", ["name=a=b"]).name == "a=b"
    assert load_spec("digits", ["data.path="]).data.path == ""


def test_an_override_cannot_bring_in_a_second_option() -> None:
    (fault,) = faults_of("digits", "train.epochs=3\ntrain.batch=1")
    assert fault.startswith("train.epochs: expected a whole number")
    assert fault.isprintable()


@pytest.mark.parametrize(
    ("override", "fault"),
    [
        ("train.epochs", "--set train.epochs: write it as table.option=value, such as train.epochs=3"),
        ("=3", "--set =3: write it as"),
        ("", "--set : write it as"),
        ("train..epochs=3", "--set train..epochs=3: write it as"),
        ("train .epochs=3", "--set train .epochs=3: write it as"),
        ("train={epochs=3}", "--set train={epochs=3}: set the options of a table one by one"),
        ("train=3", "train: expected a table; found 3 (set by --set train=3)"),
        ("name.first=x", "--set name.first=x: 'name' is 'digits' here, not a table"),
        ("train.epoch=3", "train.epoch: no such option; did you mean 'train.epochs'? (set by --set train.epoch=3)"),
        ("epochs=3", "epochs: no such option; did you mean 'train.epochs'? (set by --set epochs=3)"),
        ("train.epochs=-1", "train.epochs: expected a whole number, at least 1 and at most 100,000; found -1 (set by"),
        ("data.flip=True", "data.flip: expected true or false; found 'True' (set by --set data.flip=True)"),
        ("train.lr=" + "9" * 5000, "--set train.lr=" + "9" * 71 + "…: 5,009 characters; at most"),
        ("train.batch=0x" + "f" * 99, "train.batch: expected a whole number, at least 1; found a number too large"),
    ],
)
def test_a_bad_override_is_said(override: str, fault: str) -> None:
    (found,) = faults_of("digits", override)
    assert found.startswith(fault)
    assert len(found) < 300


def test_faults_of_the_file_and_of_the_overrides_come_together(tmp_path: Path) -> None:
    recipe = write(tmp_path, "name = 5\n[train]\nepochs = 0\nmomentun = 1\n[modle]\nwidth = 3\n")
    faults = faults_of(recipe, "nonsense", "launch.ranks=none", "data.limt=3")
    text = "\n".join(faults)
    assert len(faults) == 7
    for part in (
        "name: expected text",
        "train.epochs:",
        "train.momentun:",
        "modle:",
        "--set nonsense:",
        "launch.ranks",
        "'data.limit'",
    ):
        assert part in text


def test_an_override_mends_a_fault_of_the_file(tmp_path: Path) -> None:
    recipe = write(tmp_path, "[train]\nepochs = 0\n")
    assert load_spec(recipe, ["train.epochs=1"]).train.epochs == 1


def test_an_override_does_not_hide_that_the_file_has_no_table(tmp_path: Path) -> None:
    faults = faults_of(write(tmp_path, "train = 3\n"), "train.epochs=1")
    assert any("expected a table; found 3" in fault for fault in faults)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("a = \n", "line 1, column 5: invalid value"),
        ("[train]\nepochs = 3\nepochs = 4\n", "line 3, column 11: cannot overwrite a value"),
        ("name = 'x", "end of document: expected"),
        ("[train\n", "line 1, column 7: expected"),
        ("x = " + "9" * 5000, "line 1 has 5,004 characters"),
        ("x = [" + "\n".join("[" for _ in range(5000)), "arrays or tables are nested too deeply"),
        (".".join("a" * 5000) + " = 1", "line 1 has"),
        ("'\u2028'." + ".".join("a" * 5000) + " = 1", "line 1 has"),  # no end of line to TOML
        ("x = 2026-02-30", "line 1, column 5: invalid date"),
    ],
)
def test_what_is_not_toml_is_said_with_its_place(tmp_path: Path, text: str, fault: str) -> None:
    faults = faults_of(write(tmp_path, text), "also wrong")
    assert faults[0].startswith(fault)
    assert faults[1].startswith("--set also wrong: write it as")


def test_endless_digits_are_a_fault(tmp_path: Path) -> None:
    (fault,) = faults_of(write(tmp_path, "train.lr = 0x" + "f" * 1000))
    assert fault.endswith("found a number too large for 64 bits")
    before = sys.get_int_max_str_digits()
    try:
        sys.set_int_max_str_digits(640)  # what a user may set with PYTHONINTMAXSTRDIGITS
        assert faults_of(write(tmp_path, "train.lr = " + "9" * 700)) == ("a number has too many digits",)
    finally:
        sys.set_int_max_str_digits(before)


def test_a_byte_order_mark_and_windows_line_ends_are_no_fault(tmp_path: Path) -> None:
    recipe = write(tmp_path, b"\xef\xbb\xbf[train]\r\nepochs = 2\r\n")
    assert load_spec(recipe).train.epochs == 2


def test_an_unknown_recipe_gets_the_nearest() -> None:
    with pytest.raises(UnknownName, match="no recipe 'digts'; did you mean 'digits'") as caught:
        load_spec("digts")
    assert ".toml" in caught.value.hint


@pytest.mark.parametrize("name", ["", "x" * 5000, "a\0b", "\x1b[31m", "dig\nits", "\udcff"])
def test_a_hostile_name_is_one_clear_error(name: str) -> None:
    with pytest.raises(BadInput) as caught:
        load_spec(name)
    assert caught.value.message.isprintable()


@pytest.mark.parametrize("path", ["no/such.toml", "none.toml", "a\0b.toml", "x" * 5000 + ".toml", "\udcff.toml"])
def test_a_file_that_is_not_there_is_one_clear_error(path: str) -> None:
    with pytest.raises(BadInput, match="cannot read") as caught:
        load_spec(path)
    assert caught.value.message.isprintable()
    assert "digits" in caught.value.hint


def test_a_directory_is_no_recipe(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="is a directory"):
        load_spec(str(tmp_path))


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_that_may_not_be_read_is_said(tmp_path: Path) -> None:
    recipe = write(tmp_path, "")
    Path(recipe).chmod(0)
    with pytest.raises(BadInput, match="permission denied"):
        load_spec(recipe)


def test_a_file_that_is_too_large_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="larger than 1 MiB"):
        load_spec(write(tmp_path, b"#" + b"\n" * MAX_BYTES))
    assert load_spec(write(tmp_path, b"#" + b"\n" * (MAX_BYTES - 1))) == RunSpec()


def test_a_device_and_a_pipe_without_a_writer_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.toml")
    for path in ("/dev/zero", str(tmp_path / "pipe.toml")):
        with pytest.raises(BadInput, match="not a regular file"):
            load_spec(path)


def test_what_is_not_utf8_is_said_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="line 3 is not UTF-8"):
        load_spec(write(tmp_path, b"\n\nname = '\xff'\n"))


def test_a_shipped_name_is_not_shadowed_by_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "digits").mkdir()
    (tmp_path / "mine").write_text("name = 'mine'\n")
    monkeypatch.chdir(tmp_path)
    assert load_spec("digits").data.name == "digits"
    assert load_spec("mine").name == "mine"


def test_contradictions_are_said_together() -> None:
    faults = faults_of(
        "digits",
        "launch.ranks=8",
        "train.global_batch=7",
        "data.limit=3",
        "train.warmup_epochs=25",
        "train.schedule=step",
        "train.step_epochs=24",
    )
    assert [fault.split(":")[0] for fault in faults] == [
        "train.global_batch",
        "data.limit",
        "train.warmup_epochs",
        "train.warmup_epochs",
    ]


@pytest.mark.parametrize(
    "overrides",
    [
        ["launch.ranks=8", "train.global_batch=8", "data.limit=8"],
        ["launch.ranks=8", "train.global_batch=0", "data.limit=0"],
        ["train.warmup_epochs=20", "train.epochs=20"],
        ["train.schedule=step", "train.step_epochs=5", "train.warmup_epochs=5"],
    ],
)
def test_what_just_fits_is_no_contradiction(overrides: list[str]) -> None:
    assert isinstance(load_spec("digits", overrides), RunSpec)


def check_outcome(recipe: str, overrides: list[str]) -> None:
    """Either a specification, or an error that is fit to be shown."""
    try:
        outcome: RunSpec | AllpullError = load_spec(recipe, overrides)
    except AllpullError as error:
        outcome = error
    if isinstance(outcome, AllpullError):
        assert outcome.hint
        assert all(line.isprintable() for line in outcome.message.split("\n"))


OVERRIDES = st.lists(
    st.text(max_size=30)
    | st.tuples(
        st.sampled_from(["train.epochs", "data.flip", "name", "model", "train.lr.x", "x.y"]), st.text(max_size=12)
    ).map("=".join),
    max_size=4,
)


@settings(max_examples=150, deadline=None)
@given(OVERRIDES)
def test_any_overrides_give_a_specification_or_an_error_with_a_hint(overrides: list[str]) -> None:
    check_outcome("digits", overrides)


@settings(max_examples=150, deadline=None)
@given(st.text(st.sampled_from("[]{}=.\"'#\n\t abtrain_epochs0123-:e"), max_size=60) | st.binary(max_size=60))
def test_any_file_gives_a_specification_or_an_error_with_a_hint(
    tmp_path_factory: pytest.TempPathFactory, content: str | bytes
) -> None:
    recipe = write(tmp_path_factory.getbasetemp(), content)
    check_outcome(recipe, [])
