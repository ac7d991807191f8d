"""The directory of a study: what it holds, whose it is, and which runs belong to which point."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from allpull.config.typed import show_text
from allpull.errors import BadInput, RunDirError
from allpull.output_folder import make_folder
from allpull.rundir import redact, safe_open
from allpull.rundir.run_record import read_record
from allpull.rundir.write import no_follow, private_folder, whole_file, whole_json
from allpull.schema.base import tag
from allpull.schema.run import UNENDED, RunRecord
from allpull.schema.studied import Attempt, RecordedPoint, StudyRecord
from allpull.study.file import StudyFile, load_study
from allpull.study.overlay import changes
from allpull.study.points import Point
from allpull.study.toml_text import toml_text
from allpull.version import __version__

STUDY_TOML, STUDY_JSON, ATTEMPTS, LOCK, RUNS, CLUSTERS = (
    *("study.toml", "study.json", "attempts.jsonl", "lock", "runs", "clusters"),
)
KIND = "studyrecord"
"""The kind of ``study.json`` in its schema tag."""

FREE = (*("study.title", "study.timeout", "study.limit", "study.repeats", "study.half_width", "published", "tune"),)
"""Beginnings of the settings that may change while a study goes on: how much is run, not what."""

TUNE, TUNE_JSON = "tune", "tune.json"
"""The folder of the tuning of a study, and its result."""

STUDIES = Path("studies")
MAX_BYTES = 16 << 20
MOST_NAMED = 10  # studies in a hint


def is_study(place: Path) -> bool:
    """Whether ``place`` is the directory of a study."""
    return (place / STUDY_JSON).is_file()


def tuning_in(place: Path) -> Path | None:
    """The directory of the tuning of the study in ``place``, or ``place`` where it is one; None: nothing was tuned."""
    return next((folder for folder in (place / TUNE, place) if (folder / TUNE_JSON).is_file()), None)


def directory_of(study: StudyFile, out: Path | None) -> Path:
    """Where ``study`` is measured: ``out``, or else the folder of its name below ``studies``."""
    return out if out is not None else STUDIES / study.settings.name


def measured_directory(place: str) -> Path:
    """The directory of the study ``place``: a directory, a name below ``studies``, or a study file.

    Raises:
        BadInput: no such study has been measured, or its file has faults.
    """
    candidates = [Path(place), STUDIES / place]
    if place.endswith(".toml") and Path(place).is_file():
        candidates.append(directory_of(load_study(place), None))
    for candidate in candidates:
        if is_study(candidate):
            return candidate
    here = sorted(str(path) for path in STUDIES.glob("*") if is_study(path)) if STUDIES.is_dir() else []
    known = f"studies here: {', '.join(here[:MOST_NAMED])}" if here else "allpull study run FILE makes one"
    raise BadInput(f"nothing has been measured of a study '{show_text(place)}'", hint=known)


def kept(study: StudyFile) -> dict[str, Any]:
    """The content of ``study`` as it is written to disk, with its secrets masked."""
    clean: dict[str, Any] = redact.tree(study.plain)[0]
    return clean


def kept_study(directory: Path, overrides: Sequence[str] = ()) -> StudyFile:
    """The study that the directory ``directory`` keeps.

    Raises:
        RunDirError: it keeps none in a regular file of its own.
        BadInput: secrets of it are masked, so it cannot be run from there.
        ConfigError: as ``load_study``.
    """
    with safe_open.opened(safe_open.checked_directory(directory), STUDY_TOML):
        study = load_study(str(directory / STUDY_TOML), overrides)
    if redact.MASK in toml_text(study.plain):
        raise BadInput(f"{directory / STUDY_TOML} has its secrets masked", hint="give the study file that you wrote")
    return study


def open_directory(study: StudyFile, points: list[Point], directory: Path, *, anew: bool = False) -> None:
    """Make ``directory`` that of ``study``, or check that it is already.

    ``anew``: a directory of an older version of the file becomes that of this one; its runs stay.

    Raises:
        BadInput: it holds something else, or the study with other settings.
        OSError: it cannot be written.
    """
    make_folder(directory, mode=0o700)
    plain = kept(study)
    text = toml_text(plain)
    if is_study(directory):
        known = read_study_record(directory)
        if known.name != study.settings.name:
            raise BadInput(
                f"{directory} holds the study '{known.name}', not '{study.settings.name}'",
                hint="choose another directory: --out DIR",
            )
        if (directory / STUDY_TOML).is_file():
            differences = _differences(load_study(str(directory / STUDY_TOML)).plain, plain)
            if differences and not anew:
                raise BadInput(
                    "\n  ".join([f"the study differs from the one in {directory}:", *differences]),
                    hint="give it another study.name; or add --continue: runs of points that are still in it are kept",
                )
    elif directory.is_dir() and any(directory.iterdir()):
        raise BadInput(f"{directory} is not empty, and no study", hint="choose another directory: --out DIR")
    settings = study.settings
    record = StudyRecord(
        schema=tag(KIND),
        name=settings.name,
        title=settings.title,
        scaling=settings.scaling or None,
        created_utc=f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        allpull=__version__,
        sha256=hashlib.sha256(text.encode()).hexdigest(),
        repeats=settings.repeats,
        half_width=settings.half_width or None,
        run_half_width=settings.run_half_width or None,
        points=[recorded(point) for point in points],
        published=list(study.published),
        changed=list(study.changed),
        notes=list(settings.notes),
    )
    private_folder(str(directory / RUNS))
    whole_file(str(directory / STUDY_TOML), text)
    whole_json(str(directory / STUDY_JSON), record.model_dump(mode="json", by_alias=True))


def recorded(point: Point) -> RecordedPoint:
    """``point`` as ``study.json`` has it."""
    return RecordedPoint(
        id=point.id,
        parameters=point.parameters,
        series=point.series,
        ranks=point.job.ranks,
        hosts=point.job.hosts,
        labels=list(point.labels),
    )


def read_study_record(directory: Path) -> StudyRecord:
    """``study.json`` of ``directory``.

    Raises:
        RunDirError: there is none, or it cannot be read.
    """
    root = safe_open.checked_directory(directory)
    blob = safe_open.read_whole(root, STUDY_JSON, MAX_BYTES)
    return safe_open.document(StudyRecord, KIND, blob, f"{safe_open.shown_path(root)}/{STUDY_JSON}")


def runs_by_point(directory: Path) -> dict[tuple[str, int], list[tuple[str, RunRecord]]]:
    """Every run of the study by (point, repeat), oldest first: the name of its directory, and its record."""
    root = safe_open.checked_directory(directory)
    runs: dict[tuple[str, int], list[tuple[str, RunRecord]]] = {}
    for name in safe_open.file_names(root, RUNS, ""):
        try:
            record = read_record(root / RUNS / name)
        except RunDirError:
            continue  # killed before it wrote its record: there is nothing in it
        point, _, repeat = (record.point or "").rpartition("/")
        if point and repeat.isdecimal():
            runs.setdefault((point, int(repeat)), []).append((name, record))
    return runs


def read_attempts(directory: Path) -> list[Attempt]:
    """All attempts in their order; a line that was cut off is left out.

    Raises:
        RunDirError: the log is no regular file of the directory.
    """
    if not os.path.lexists(directory / ATTEMPTS):
        return []
    log = safe_open.read_whole(safe_open.checked_directory(directory), ATTEMPTS, MAX_BYTES)
    attempts = []
    for line in log.splitlines():
        try:
            attempts.append(Attempt.model_validate_json(line))
        except ValueError:
            continue
    return attempts


def add_attempt(directory: Path, attempt: Attempt) -> None:
    """Append ``attempt``, and wait until the disk has it.

    Raises:
        OSError: the disk is full, say.
    """
    with open(directory / ATTEMPTS, "a", encoding="utf-8", opener=no_follow) as file:
        file.write(json.dumps(attempt.model_dump(mode="json", by_alias=True)) + "\n")
        file.flush()
        os.fsync(file.fileno())


def unlogged_attempts(directory: Path, points: Mapping[str, int]) -> list[Attempt]:
    """Attempts that are not in the log, of ``points`` with their ranks: the study was killed, or the log was lost.

    Their time counts towards its limits. The lock of the study has to be held: then a run that has not ended is no
    longer there, unless it is in a queue.
    """
    logged = {attempt.run for attempt in read_attempts(directory)}
    return [
        Attempt(
            point=id_,
            repeat=repeat,
            run=name,
            state="completed" if record.status == "completed" else "failed" if record.status == "failed" else "missing",
            seconds=seconds,
            rank_s=seconds * points[id_],
            reason=None if record.status == "completed" else "interrupted, and the study with it",
        )
        for (id_, repeat), runs in runs_by_point(directory).items()
        for name, record in runs
        if name not in logged and id_ in points and not (record.job and record.status in UNENDED)
        for seconds in (run_seconds(directory / RUNS / name, record),)
    ]


def run_seconds(run: Path, record: RunRecord) -> float:
    """How long ``run`` took by its record; of one without an end, until its last change."""
    begin = datetime.fromisoformat(record.created_utc).timestamp()
    if record.ended_utc is not None:
        return max(0.0, datetime.fromisoformat(record.ended_utc).timestamp() - begin)
    return max(0.0, max(path.lstat().st_mtime for path in (run, *run.rglob("*"))) - begin)


@contextmanager
def locked(directory: Path) -> Iterator[int]:
    """Hold the lock of a study; yields its descriptor. Processes of jobs share it, so it ends with the last of them.

    Raises:
        BadInput: another process runs this study.
    """
    descriptor = no_follow(str(directory / LOCK), os.O_RDWR | os.O_CREAT)  # it is truncated
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(descriptor, 20).decode("ascii", "replace").strip()
            raise BadInput(
                f"{directory} is in use: process {holder or 'unknown'} runs this study, or its last run still ends",
                hint="wait for it, or end it and try again in half a minute",
            ) from None
        os.ftruncate(descriptor, 0)
        os.write(descriptor, str(os.getpid()).encode())
        yield descriptor
    finally:
        os.close(descriptor)


def _differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """A line for each setting in which two studies differ, apart from those that change no run."""
    return [
        f"{one.what}: was {one.full}; is now {one.here}" for one in changes(old, new) if not one.what.startswith(FREE)
    ]


def cluster_file(directory: Path, point: Point) -> Path:
    """Where the cluster file of a rehearsed point is."""
    return directory / CLUSTERS / f"{point.id}.toml"
