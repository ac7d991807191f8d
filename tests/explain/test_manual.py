"""The manual: every rule says what it is, how it is found, what it costs, what to do, and when it is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from allpull.errors import UnknownName
from allpull.explain import rules
from allpull.explain.manual import HEADINGS, section, sections, summary
from allpull.explain.rules import RULES, names

DESIGNED = [
    "slow-rank",
    "rotating-imbalance",
    "slow-loader-rank",
    "input-bound",
    "network-bound",
    "slow-link",
    "shared-uplink",
    "latency-bound",
    "no-overlap",
    "sequential-evaluation",
    "sequential-checkpoint",
    "uneven-shards",
    "launch-bound",
    "cpu-contention",
    "page-cache-only",
    "first-batch-stall",
    "awkward-rank-count",
    "vector-build",
]
"""The slugs of DESIGN §5."""

CLAIX = {
    "parallelise evaluation": ("sequential-evaluation", "all_reduce"),
    "more generator workers": ("input-bound", "num_workers"),
    "evaluation as a separate job": ("evaluation-share", "sbatch --dependency"),
    "preprocess offline": ("preprocess-offline", "beforehand"),
    "larger fusion buffer": ("latency-bound", "HOROVOD_FUSION_THRESHOLD"),
    "hosts on one leaf switch": ("shared-uplink", "--switches=1"),
    "a build that uses vector instructions": ("vector-build", "ATEN_CPU_CAPABILITY"),
    "mixed precision": ("mixed-precision", "autocast"),
}
"""What the study of CLAIX recommended by hand → the rule that recommends it, and a word of its remedy."""


@pytest.mark.parametrize("slug", names())
def test_a_rule_has_all_headings_in_their_order(slug: str) -> None:
    assert tuple(sections(slug)) == HEADINGS
    assert all(len(text.split()) >= 4 for text in sections(slug).values())
    assert summary(slug).endswith(".")


@pytest.mark.parametrize("slug", names())
def test_a_rule_is_a_file_of_its_name(slug: str) -> None:
    assert RULES.builtin[slug] == f"allpull.explain.rules.{slug.replace('-', '_')}:find"
    assert callable(RULES.load(slug))


def test_every_file_of_the_room_is_a_rule() -> None:
    files = {path.stem for path in Path(rules.__file__).parent.glob("*.py")} - {"__init__"}
    assert files == {slug.replace("-", "_") for slug in RULES.builtin}


def test_every_rule_that_was_designed_exists() -> None:
    assert set(DESIGNED) <= set(names())


@pytest.mark.parametrize("recommended", CLAIX)
def test_every_recommendation_of_the_study_is_a_rule(recommended: str) -> None:
    slug, word = CLAIX[recommended]
    assert word in section(slug, "What to do")


def test_a_section_is_one_paragraph() -> None:
    assert "\n" not in section("slow-rank", "When it is wrong")


def test_a_rule_that_there_is_not_is_named_with_the_nearest() -> None:
    with pytest.raises(UnknownName, match="did you mean 'slow-rank'"):
        sections("slow-rnak")
