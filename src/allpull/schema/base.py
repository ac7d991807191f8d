"""What a record is, and which versions of it this allpull reads.

Format history:

- 1.0 (allpull 0.1.0): first version.
- 1.1 (allpull 0.1.0): programs that are observed unedited. Steps have the time in collectives that the program calls or
  that hide in forward, each of them by kind, and the backward passes of a step; events have kinds of collectives,
  profiler windows, buckets and times on the device; counters have pings between hosts and accelerators.
- 1.2 (allpull 0.1.0): steps have the moment at which each bucket of gradients was ready. Of imported runs, run.json
  has gaps, and headers of steps how the clocks of hosts compared.
- 1.3 (allpull 0.1.0): steps have how long the thread that trains waited for a CPU. Findings have the options that their
  remedy names.
- 1.4 (allpull 0.1.0): steps list every reduction of gradients, where there may be several, and events say of which
  network buckets are, and that a rank joined a process group. Headers of counters say why nothing is counted; before,
  an entry of their sources did.
- 1.5 (allpull 0.1.0): events say what held up a rank: garbage collection, compilation, retries of CUDA's allocator.
  Steps on a device have when each bucket of gradients was ready, and list every reduction, by the device's clock.
  Events have the settings of DDP, what NCCL logged of its transports, how a rank's CPUs lie to its accelerator, and how
  many shapes of input were new to cuDNN. Steps have the size of their batches where it varies.
  Events say what ends the steps of a rank whose optimizer is not observed.
- 1.6 (allpull 0.1.0): run.json has the point of a study that a run measures; hosts have the switches above them.
  run.json has the process of allpull that runs the job. Events have the time in DDP's communication hooks.
  Counters say which of their samples is the last. Findings have the commands and edits in their remedy.
  The first step has the size of its batch, whether it varies or not, and DDP's settings how many ranks it averages.
  Events have digests of the first batches that a rank trains on. Steps on a device have when nothing but collectives
  ran.

A minor version adds optional fields, so an older reader may ignore them; a major version comes with an upgrade
function, and one real run of every past version stays in the tests.
"""

from __future__ import annotations

import re

from pydantic import BaseModel, ConfigDict

from allpull.errors import RunDirError

VERSION = "1.6"

_TAG = re.compile(r"allpull\.([a-z]+)/(\d{1,4})\.(\d{1,4})")


class Record(BaseModel):
    """Base of all records: immutable; fields that this version does not know are ignored when read."""

    model_config = ConfigDict(
        frozen=True,
        extra="ignore",
        ser_json_inf_nan="null",
        allow_inf_nan=False,
        defer_build=True,  # a verb uses few of all records: each builds its validator when first used
    )


def tag(kind: str) -> str:
    """The ``schema`` field that begins every file of ``kind``.

    >>> tag("steps")
    'allpull.steps/1.6'
    """
    return f"allpull.{kind}/{VERSION}"


def check_tag(schema: object, kind: str, where: str) -> None:
    """Accept any minor version of our major one.

    Raises:
        RunDirError: ``schema`` is no tag of ``kind``, or one of a newer major version; ``where`` names the file.
    """
    match = _TAG.fullmatch(schema) if isinstance(schema, str) else None
    if match is None or match.group(1) != kind:
        shown = repr(schema)[:80]
        raise RunDirError(f"{where}: schema is {shown}, expected {tag(kind)}", hint="is this an allpull file?")
    if int(match.group(2)) > int(VERSION.split(".", maxsplit=1)[0]):
        raise RunDirError(
            f"{where}: written by a newer allpull (schema {match.group(0)}; this one reads up to {tag(kind)})",
            hint="upgrade allpull: pip install --upgrade allpull",
        )
