"""Start the sidecar of this host from its first rank, where nothing of allpull runs beside the program."""

from __future__ import annotations

import os
import subprocess

from ...rundir import layout
from .. import clock_pings
from ..identity import Identity
from ..sidecar import start
from .session import JOB_VARIABLE, Session


def start_sidecar(session: Session, who: Identity) -> None:
    """Sample this host's counters for as long as this process lives; nothing where that is done already."""
    job = session.job
    if not job.get("counters") or os.path.exists(os.path.join(session.directory, layout.counters_file(who.host))):
        return
    environment = {name: value for name, value in os.environ.items() if name != JOB_VARIABLE}
    alone = who.ranks == 1 or os.environ.get("LOCAL_WORLD_SIZE") == str(who.ranks)
    try:
        with open(os.path.join(session.directory, layout.LOGS, f"sidecar-{layout.slug(who.host)}.log"), "ab") as log:
            start.start(
                {**job, "directory": session.directory},
                who.host,
                os.getpid(),
                clock_pings.NONE if alone else clock_pings.AUTO,
                env=environment,
                cwd=session.directory,  # a module of the program's own must not be taken for one of Python's
                stdin=subprocess.DEVNULL,
                stdout=log,  # mpirun waits for whoever holds the program's own
                stderr=log,
                start_new_session=True,
            )
    except OSError as error:
        session.part_failed("counters", error)
