"""Start the sidecar of this host from its first rank, where nothing of allpull runs beside the program."""

from __future__ import annotations

import os
import subprocess
import sys

from ...rundir import layout
from ..clocks import NONCE_VARIABLE
from ..identity import Identity
from .session import JOB_VARIABLE, Session


def start_sidecar(session: Session, who: Identity) -> None:
    """Sample this host's counters for as long as this process lives; nothing where that is done already."""
    job = session.job
    if not job.get("counters") or os.path.exists(os.path.join(session.directory, layout.counters_file(who.host))):
        return
    hook = os.path.join(session.directory, layout.HOOK)
    environment = {name: value for name, value in os.environ.items() if name != JOB_VARIABLE}
    environment["PYTHONPATH"] = hook
    environment[NONCE_VARIABLE] = job.get("nonce", "")
    command = [sys.executable, "-m", "_allpull.observe.sidecar", "--run", session.directory, "--host", who.host]
    command += ["--watch", str(os.getpid()), "--interval-s", str(job["counter_interval_s"])]
    command += ["--budget", str(job["budget"]), "--clock", "auto"]
    try:
        subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, start_new_session=True)
    except OSError as error:
        session.part_failed("counters", error)
