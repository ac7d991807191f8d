"""Errors survive the way to another process: class, message, hint and faults."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from allpull.api.jobs import JobFailed
from allpull.data.pack_format import PackError
from allpull.errors import (
    AllpullError,
    BadInput,
    ConfigError,
    MissingPart,
    RunDirError,
    UnknownName,
    from_plain,
    to_plain,
)

ERRORS = [
    AllpullError("no", hint="yes"),
    MissingPart("no torch", hint="install it"),
    RunDirError("no run"),
    UnknownName("recipe", "digts", ["digits"], hint="or a path"),
    ConfigError("job.toml", ["a: no", "b: no"], hint="fix each line"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_comes_back_as_it_was(error: AllpullError) -> None:
    for received in (pickle.loads(pickle.dumps(error)), from_plain(json.loads(json.dumps(to_plain(error))))):
        assert type(received) is type(error)
        assert (str(received), vars(received)) == (str(error), vars(error))


def test_an_error_of_another_module_becomes_its_nearest_class() -> None:
    assert type(from_plain(to_plain(PackError("no pack")))) is BadInput


def test_what_a_class_adds_is_pickled_too() -> None:
    error = pickle.loads(pickle.dumps(JobFailed("no", Path("runs/a"), hint="logs")))
    assert (error.directory, error.message, error.hint) == (Path("runs/a"), "no", "logs")
