"""Write an imported run: its record, its steps and events, and the raw traces, compressed.

The directory is written under a temporary name and renamed when it is complete.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from allpull.errors import BadInput
from allpull.importers import records
from allpull.importers.clocks import Clocks
from allpull.importers.joining import Joined, Rank
from allpull.importers.kineto.calls import Call
from allpull.importers.sources import Source
from allpull.output_folder import make_folder
from allpull.regular_file import regular
from allpull.rundir import layout, redact
from allpull.rundir.run_record import redacted, write_record
from allpull.rundir.safe_open import shown_path
from allpull.rundir.write import private_folder, whole_file
from allpull.schema.base import tag
from allpull.schema.run import RunRecord
from allpull.traces.classify import item_bytes
from allpull.units import NS_PER_S
from allpull.version import __version__

LAUNCHER = "import"
FOLDERS = (*layout.RECORDS, layout.TRACES, layout.DERIVED)
GZIP_LEVEL = 1  # several times faster than the default level, for a tenth more bytes
CHUNK = 1 << 20
MAX_RUNS = 1000  # of one name


def write(
    joined: Joined, clocks: Clocks | None, gaps: Sequence[str], *, out: Path, name: str, places: Sequence[Path]
) -> Path:
    """Write the run directory of ``joined`` below ``out``; ``places`` are the paths that the user gave.

    Raises:
        BadInput: it cannot be written.
    """
    record = _record(joined, gaps, name=name, places=places)
    make_folder(out, mode=0o700)
    try:
        scratch = Path(tempfile.mkdtemp(dir=out.resolve(), prefix=f".{record.id}.", suffix=".part"))
        try:
            record = record.model_copy(update={"id": _free_name(out, record.id)})
            _fill(scratch, joined, clocks, record)
            directory = out.resolve() / record.id
            scratch.rename(directory)
        except BaseException:
            shutil.rmtree(scratch, ignore_errors=True)
            raise
    except OSError as error:
        raise BadInput(
            f"cannot write a run directory in {shown_path(out)}: {error.strerror or error}",
            hint="give another place with --out",
        ) from error
    return directory


def _free_name(out: Path, name: str) -> str:
    for attempt in range(1, MAX_RUNS):
        candidate = name if attempt == 1 else f"{name}-{attempt}"
        if not os.path.lexists(out / candidate):
            return candidate
    raise BadInput(f"{shown_path(out)} already holds {MAX_RUNS - 1} runs called {name}", hint="give another --out")


def _record(joined: Joined, gaps: Sequence[str], *, name: str, places: Sequence[Path]) -> RunRecord:
    begin_ns = min(rank.steps[0][1].begin_ns for rank in joined.ranks)
    end_ns = max(rank.steps[-1][1].end_ns for rank in joined.ranks)
    name = name.encode("utf-8", "replace").decode()
    signature = hashlib.sha256("\n".join(_identity(joined)).encode()).hexdigest()[:8]
    begin, end = (datetime.fromtimestamp(t_ns // NS_PER_S, UTC) for t_ns in (begin_ns, end_ns))
    record = RunRecord(
        schema=tag("run"),
        id=layout.run_name(f"{begin:%Y%m%dT%H%M%SZ}", redact.text(name)[0], len(joined.ranks), signature),
        name=name,
        kind="run",
        created_utc=f"{begin:%Y-%m-%dT%H:%M:%SZ}",
        ended_utc=f"{end:%Y-%m-%dT%H:%M:%SZ}",
        status="completed",
        command=["allpull", "import", *map(shown_path, places[:1000])],
        spec={"import": _facts(joined)},
        launcher=LAUNCHER,
        ranks=len(joined.ranks),
        hosts=joined.hosts,
        versions={"allpull": __version__, **joined.versions},
        gaps=list(gaps),
    )
    return redacted(record)


def _facts(joined: Joined) -> dict[str, object]:
    """What traces show of their program: the elements of its gradients, and whether a device was profiled."""
    steps = (step for rank in joined.ranks for _, step in rank.steps)
    sizes = [_elements(step.reduction.calls) for step in steps if step.reduction is not None]
    device = "accelerator" if any("kernels" in rank.sources for rank in joined.ranks) else "host"
    return {"device": device} | ({"gradients": max(sizes)} if sizes and all(sizes) else {})


def _elements(calls: Iterable[Call]) -> int:
    """The elements that ``calls`` reduce; 0: not known of one of them."""
    counts = [call.use.size_bytes // size if (size := item_bytes(call.use.dtype)) else 0 for call in calls]
    return sum(counts) if all(counts) else 0


def _identity(joined: Joined) -> Iterator[str]:
    """Lines that distinguish this import from others."""
    for rank in joined.ranks:
        yield f"{rank.stated_rank} {rank.host} {rank.steps[0][1].begin_ns} {rank.steps[-1][1].end_ns} {len(rank.steps)}"


def _fill(directory: Path, joined: Joined, clocks: Clocks | None, record: RunRecord) -> None:
    for folder in FOLDERS:
        private_folder(str(directory / folder))
    local: Counter[str] = Counter()
    has_offsets = clocks is not None and len(joined.hosts) > 1
    for rank in joined.ranks:
        looks = clocks.looks.get(rank.host, ()) if clocks else ()
        is_aligned = has_offsets and (looks or rank.host == clocks.reference) if clocks else False
        text, kinds = records.steps_lines(
            rank,
            size=joined.size,
            local_rank=local[rank.host],
            against=clocks.reference if clocks and is_aligned else None,
            looks=looks,
        )
        local[rank.host] += 1
        whole_file(str(directory / layout.steps_file(rank.rank)), text)
        files = list(_kept(directory, rank))
        whole_file(str(directory / layout.events_file(rank.rank)), records.events_lines(rank, kinds, files))
    write_record(directory, record)


def _kept(directory: Path, rank: Rank) -> Iterator[tuple[str, int, int]]:
    """Copy the traces and dumps of a rank into ``directory``; yields each trace with its first and last step."""
    for part, first, last in rank.windows:
        relative = layout.trace_file(rank.rank, first)
        _copy(part.source, directory / relative, packed=True)
        yield relative, first, last
    for place, dump in enumerate(rank.dumps):
        suffix = "pickle" if dump.source.kind == "pickle" else "json"
        ending = f"{suffix}.gz" if dump.source.is_packed else suffix
        relative = layout.flight_recorder_file(rank.rank, place, ending)
        _copy(dump.source, directory / relative, packed=False)


def _copy(source: Source, path: Path, *, packed: bool) -> None:
    """Copy ``source`` to ``path``; ``packed``: compress it with gzip, unless it already is."""
    with open(source.path, "rb", opener=regular) as file:
        target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(target, "wb") as raw:
            if packed and not source.is_packed:
                with gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=GZIP_LEVEL, mtime=0) as packing:
                    shutil.copyfileobj(file, packing, CHUNK)
            else:
                shutil.copyfileobj(file, raw, CHUNK)
