"""Report bad samples after each epoch: counts over all ranks as metrics, the samples themselves in a list."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, astuple
from pathlib import Path

import torch

from allpull import marks
from allpull.data.loader.bad_samples import PARTS, BadSamples, Counts, too_many
from allpull.rundir import layout
from allpull.rundir.write import no_follow
from allpull.train.parallel.ranks import Ranks

LABELS = {"left_out": "left out", "replaced": "replaced by others", "by_pillow": "decoded by Pillow"}
NONE = Counts()


class BadSampleReport:
    """Reports the bad samples of each part in run directory ``directory``; ``samples`` is empty for data in memory.

    ``limit``: the largest share of a part's samples that may be left out or replaced.
    """

    def __init__(self, samples: Mapping[str, BadSamples], ranks: Ranks, directory: Path, limit: float) -> None:
        self._samples, self._ranks, self._limit = samples, ranks, limit
        self._list = directory / layout.bad_samples_file(ranks.rank)
        self._reported = dict.fromkeys(samples, NONE)
        self._last_message = ""

    def report(self, epoch: int, step: int, *, check_limit: bool) -> None:
        """Report what was counted since the last call: metrics of ``step``, and a remark if the counts changed.

        A collective: one small reduction. ``check_limit``: a whole epoch was counted; in a few steps one bad sample
        may already exceed the limit.

        Raises:
            BadInput: too many samples were left out or replaced.
        """
        if not self._samples:
            return
        self.write()
        new_counts = self._since()
        for part, counts in new_counts.items():
            lead = "" if part == "train" else f"{part}_"
            for name in LABELS:
                marks.metric(f"{lead}samples_{name}", getattr(counts, name), step)
        message = "; ".join(filter(None, (_summary(part, counts) for part, counts in new_counts.items())))
        if message and message != self._last_message and self._ranks.rank == 0:
            marks.remark(f"epoch {epoch + 1}: {message}; see {layout.BAD_SAMPLES}")
        self._last_message = message
        for part, counts in new_counts.items():
            lost = counts.left_out + counts.replaced
            if check_limit and lost > self._limit * counts.loaded:
                raise too_many(lost, counts.loaded, self._limit, part)

    def _since(self) -> dict[str, Counts]:
        """The counts of all ranks since the last time."""
        now = {part: samples.totals() for part, samples in self._samples.items()}
        rows = [astuple(now[part]) for part in now], [astuple(self._reported[part]) for part in now]
        own_counts = torch.tensor(rows, dtype=torch.int64, device=self._ranks.device)
        self._reported = now
        return {
            part: Counts(**dict(zip(asdict(NONE), row, strict=True)))
            for part, row in zip(now, self._ranks.total(own_counts[0] - own_counts[1]).tolist(), strict=True)
        }

    def write(self) -> None:
        """Append this rank's new entries to its list; another attempt of the job continues in the same file."""
        lines = [
            json.dumps({"part": part, **{name: value for name, value in asdict(one).items() if value is not None}})
            for part, samples in self._samples.items()
            for one in samples.new_entries()
        ]
        if lines:
            self._list.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with open(self._list, "a", encoding="utf-8", opener=no_follow) as file:
                file.write("\n".join(lines) + "\n")


def _summary(part: str, counts: Counts) -> str:
    kinds = [f"{count:,} {label}" for name, label in LABELS.items() if (count := getattr(counts, name))]
    return f"of {counts.loaded:,} {PARTS[part]} samples, {', '.join(kinds)}" if kinds else ""
