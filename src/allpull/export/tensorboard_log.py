"""Curves as a TensorBoard log: one TensorBoard run for the job, for each rank, and for each host."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from allpull.errors import MissingPart
from allpull.export.curves import JOB, Curve, distinct

EVENTS = "events.out.tfevents.0.allpull"
"""Name of each event file: TensorBoard reads those with `tfevents` in their names."""


def need_tensorboard() -> None:
    """Check that TensorBoard is installed.

    Raises:
        MissingPart: it is not.
    """
    try:
        import tensorboard.compat.proto.event_pb2  # noqa: F401, PLC0415  an optional part
    except ImportError as error:
        raise MissingPart(
            f"--to tensorboard needs the package tensorboard, which cannot be imported: {error}",
            hint="pip install 'allpull[tensorboard]'",
        ) from error


def write_log(curves: Iterable[Curve], summary: str, folder: Path) -> int:
    """Write ``curves`` below ``folder``, a folder each for the job, ranks and hosts; returns the number of points.

    ``summary`` is Markdown, shown under TEXT.

    Raises:
        OSError: a file cannot be written.
    """
    of_owner: dict[str, list[Curve]] = {JOB: []}
    for curve in curves:
        of_owner.setdefault(curve.owner, []).append(curve)
    points, taken = 0, dict[str, int]()
    for owner, own in of_owner.items():
        place = folder / distinct(re.sub(r"[^A-Za-z0-9._-]", "_", owner)[:100], taken)
        place.mkdir()
        points += _write_events(own, summary if owner == JOB else "", place)
    return points


def _write_events(curves: list[Curve], summary: str, folder: Path) -> int:
    """Write one event file, in the order of time; under another name until it is whole, as TensorBoard may look."""
    from tensorboard.compat.proto.event_pb2 import Event  # noqa: PLC0415  an optional part
    from tensorboard.compat.proto.summary_pb2 import Summary  # noqa: PLC0415
    from tensorboard.summary.writer.record_writer import RecordWriter  # noqa: PLC0415

    points = sorted(
        (unix_s, step, number, value)
        for number, curve in enumerate(curves)
        for unix_s, step, value in zip(curve.unix_s.tolist(), curve.steps.tolist(), curve.values.tolist(), strict=True)
    )
    taken = dict[str, int]()
    tags = [distinct(curve.name, taken) for curve in curves]
    first_s = points[0][0] if points else 0.0
    partial = folder / "partial"
    with partial.open("wb") as file:
        writer = RecordWriter(file)
        writer.write(Event(wall_time=first_s, file_version="brain.Event:2").SerializeToString())
        if summary:
            text = Summary(value=[_text(summary)])
            writer.write(Event(wall_time=first_s, step=0, summary=text).SerializeToString())
        for unix_s, step, number, value in points:
            scalar = Summary(value=[Summary.Value(tag=tags[number], simple_value=value)])
            writer.write(Event(wall_time=unix_s, step=step, summary=scalar).SerializeToString())
    partial.rename(folder / EVENTS)
    return len(points)


def _text(markdown: str) -> Any:
    """``markdown`` as a value of TensorBoard's text plug-in."""
    from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata  # noqa: PLC0415  an optional part
    from tensorboard.compat.proto.tensor_pb2 import TensorProto  # noqa: PLC0415
    from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto  # noqa: PLC0415

    plugin = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
    shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])
    tensor = TensorProto(dtype="DT_STRING", string_val=[markdown.encode()], tensor_shape=shape)
    return Summary.Value(tag="explain/text_summary", metadata=plugin, tensor=tensor)
