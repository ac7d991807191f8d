"""Start the sidecar of this host from its first rank, where nothing of allpull runs beside the program."""

from __future__ import annotations

import os

from ...rundir import layout
from .. import clock_pings
from ..identity import Identity
from ..sidecar.start import start_detached
from .session import Session


def start_sidecar(session: Session, who: Identity) -> None:
    """Sample this host's counters for as long as this process lives; nothing where that is done already."""
    if os.path.exists(os.path.join(session.directory, layout.counters_file(who.host))):
        return
    one_host = who.ranks == 1 or os.environ.get("LOCAL_WORLD_SIZE") == str(who.ranks)
    clock = clock_pings.NONE if one_host else clock_pings.AUTO
    try:
        start_detached(session.job, who.host, watch=os.getpid(), clock=clock)
    except OSError as error:
        session.part_failed("counters", error)
