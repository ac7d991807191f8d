"""Metrics of the runs of a study, kept in its directory: a run that has ended is read once."""

from __future__ import annotations

from pathlib import Path

from allpull.analyse.aligned import AlignedRun
from allpull.analyse.run import metrics
from allpull.errors import RunDirError
from allpull.rundir import safe_open
from allpull.rundir.derived import result_key
from allpull.rundir.read.run import read_run
from allpull.rundir.write import whole_json
from allpull.schema.base import tag
from allpull.schema.results import RunMetrics
from allpull.schema.studied import KeptRun, KeptRuns
from allpull.study.directory import RUNS

FILE = "metrics.json"
KIND = "studymetrics"
MAX_BYTES = 256 << 20


class StudyMetrics:
    """The metrics of each run of the study in ``directory``, from its ``metrics.json`` where that is of these files.

    Nothing is kept on disk where another user can write, or of a run that changed in the last seconds.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._kept = dict(_read(directory))
        self._measured: dict[str, RunMetrics] = {}
        self._is_changed = False

    def of(self, run: str) -> RunMetrics:
        """The metrics of the run in the directory ``run`` of the study.

        Raises:
            RunDirError: its records cannot be read.
        """
        if run not in self._measured:
            self._measured[run] = self._metrics(run)
        return self._measured[run]

    def _metrics(self, run: str) -> RunMetrics:
        place = self._directory / RUNS / run
        key = result_key(place, "", least_bytes=0)
        known = self._kept.get(run)
        if key is not None and known is not None and known.digest == key.digest:
            return known.metrics
        made = metrics(AlignedRun(read_run(place, skip_damaged=True)))
        if key is not None and result_key(place, "", least_bytes=0) == key:
            self._kept[run] = KeptRun(digest=key.digest, metrics=made)
            self._is_changed = True
        return made

    def keep(self) -> None:
        """Write what was read since; nothing where that is not possible, as it would only save time."""
        if not self._is_changed or not _is_private(self._directory):
            return
        try:
            kept = KeptRuns(schema=tag(KIND), runs=self._kept)
            whole_json(str(self._directory / FILE), kept.model_dump(mode="json", by_alias=True))
        except OSError:
            return


def _read(directory: Path) -> dict[str, KeptRun]:
    if not _is_private(directory) or not (directory / FILE).is_file():
        return {}
    try:
        root = safe_open.checked_directory(directory)
        where = f"{safe_open.shown_path(root)}/{FILE}"
        return safe_open.document(KeptRuns, KIND, safe_open.read_whole(root, FILE, MAX_BYTES), where).runs
    except RunDirError:
        return {}


def _is_private(directory: Path) -> bool:
    """Whether only this user can have written the file."""
    paths = [directory, *([directory / FILE] if (directory / FILE).exists() else [])]
    try:
        return not any(path.is_symlink() or safe_open.others_can_write(path.lstat()) for path in paths)
    except OSError:
        return False
