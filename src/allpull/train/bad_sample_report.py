"""Tell after each epoch which samples were not as the others: how many on all ranks, and which in a list."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, astuple
from pathlib import Path

import torch

from allpull import marks
from allpull.data.loader.bad_samples import PARTS, Counts, Odd, too_many
from allpull.rundir import layout
from allpull.train.parallel.ranks import Ranks

WORDS = {"left_out": "left out", "replaced": "replaced by others", "by_pillow": "decoded by Pillow"}
NONE = Counts()


class OddSamples:
    """What became of samples of ``odd``, in run directory ``directory``; empty for data that cannot be odd.

    ``limit``: of the samples of a part, the share of which more may not be left out or replaced.
    """

    def __init__(self, odd: Mapping[str, Odd], ranks: Ranks, directory: Path, limit: float) -> None:
        self._odd, self._ranks, self._limit = odd, ranks, limit
        self._list = directory / layout.odd_file(ranks.rank)
        self._told = dict.fromkeys(odd, NONE)
        self._said = ""

    def tell(self, epoch: int, step: int, *, judge: bool) -> None:
        """What has come since the last time, as metrics of ``step`` and, where it is other than then, in words.

        A collective, one small reduction. ``judge``: a whole epoch has come; of a few steps a single odd sample may be
        more than the limit.

        Raises:
            BadInput: too many samples were left out or replaced.
        """
        if not self._odd:
            return
        self.write()
        found = self._since()
        for part, counts in found.items():
            lead = "" if part == "train" else f"{part}_"
            for name in WORDS:
                marks.metric(f"{lead}samples_{name}", getattr(counts, name), step)
        said = "; ".join(filter(None, (_said(part, counts) for part, counts in found.items())))
        if said and said != self._said and self._ranks.rank == 0:
            marks.remark(f"epoch {epoch + 1}: {said}; see {layout.odd_file(0).replace('00000', '*')}")
        self._said = said
        for part, counts in found.items():
            lost = counts.left_out + counts.replaced
            if judge and lost > self._limit * counts.seen:
                raise too_many(lost, counts.seen, self._limit, part)

    def _since(self) -> dict[str, Counts]:
        """The counts of all ranks since the last time."""
        now = {part: odd.taken() for part, odd in self._odd.items()}
        rows = [astuple(now[part]) for part in now], [astuple(self._told[part]) for part in now]
        ours = torch.tensor(rows, dtype=torch.int64, device=self._ranks.device)
        self._told = now
        return {
            part: Counts(**dict(zip(asdict(NONE), row, strict=True)))
            for part, row in zip(now, self._ranks.total(ours[0] - ours[1]).tolist(), strict=True)
        }

    def write(self) -> None:
        """Append this rank's news to its list; another attempt of the job goes on in the same file."""
        lines = [
            json.dumps({"part": part, **{name: value for name, value in asdict(one).items() if value is not None}})
            for part, odd in self._odd.items()
            for one in odd.news()
        ]
        if lines:
            self._list.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(self._list, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write("\n".join(lines) + "\n")


def _said(part: str, counts: Counts) -> str:
    what = [f"{count:,} {words}" for name, words in WORDS.items() if (count := getattr(counts, name))]
    return f"of {counts.seen:,} samples {PARTS[part]} {', '.join(what)}" if what else ""
