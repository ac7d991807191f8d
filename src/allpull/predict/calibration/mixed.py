"""What runs and probes of one forecast must have in common, beside their program."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from allpull.analyse.aligned import AlignedRun
from allpull.analyse.programs import precision
from allpull.predict.calibration.calibrated import Probe
from allpull.predict.calibration.measured import MeasuredRun

SAME_BYTES = 1.01  # of gradients: buckets may be padded


def difference(runs: Sequence[AlignedRun], measured: Sequence[MeasuredRun], probes: Sequence[Probe]) -> str | None:
    """Why ``runs``, as ``measured``, and ``probes`` do not describe one training; None: they do."""
    accelerators = ({name for host in run.data.hosts for name in host.gpus} for run in runs)
    facts = {
        "precisions": filter(None, (precision(run.data) for run in runs)),
        "accelerators": (", ".join(sorted(names)) for names in accelerators if names),
        "back-ends": filter(None, (run.backend for run in measured)),
    }
    for name, values in facts.items():
        listed = sorted(set(values))
        if len(listed) > 1:
            return f"the runs have several {name}: {' and '.join(listed)}"
    return next(_of_probes(measured, probes), None) or _of_gradients(measured)


def _of_probes(measured: Iterable[MeasuredRun], probes: Sequence[Probe]) -> Iterator[str]:
    backend = next((run.backend for run in measured if run.backend is not None), None)
    for one in probes:
        probed = one.answer.backend
        if backend is not None and probed is not None and probed.lower() != backend:
            yield f"{one.run} probed {probed}, and the runs exchange by {backend}"


def _of_gradients(measured: Iterable[MeasuredRun]) -> str | None:
    """Gradients of other sizes are another model, whatever the options are called."""
    bytes_of = {run.run: float(run.bucket_bytes.sum()) for run in measured if run.bucket_bytes is not None}
    known = {run: size for run, size in bytes_of.items() if size > 0}
    if not known or max(known.values()) <= SAME_BYTES * min(known.values()):
        return None
    least, most = min(known, key=known.__getitem__), max(known, key=known.__getitem__)
    return f"{least} has {known[least]:,.0f} bytes of gradients and {most} {known[most]:,.0f}: these are several models"
