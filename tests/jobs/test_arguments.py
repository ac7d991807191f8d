"""Options as arguments of Python: what is started is the same, and messages name what was written."""

from __future__ import annotations

import pytest

from allpull.config.load import load_spec
from allpull.errors import ConfigError
from allpull.jobs.arguments import as_argument, assignments


def test_arguments_set_the_options_of_a_recipe() -> None:
    spec = load_spec("digits", assignments({"train__epochs": 3, "name": "with = and __", "parallel__overlap": False}))
    assert (spec.train.epochs, spec.name, spec.parallel.overlap) == (3, "with = and __", False)


def test_faults_name_the_argument() -> None:
    with pytest.raises(ConfigError) as caught:
        load_spec("digits", assignments({"train__epoch": 3, "data__limt": 5}), spelling=as_argument)
    assert [fault.rpartition("(set by ")[2] for fault in caught.value.faults] == ["data__limt=5)", "train__epoch=3)"]
