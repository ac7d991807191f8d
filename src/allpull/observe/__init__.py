"""What runs on every host of an observed job.

``agent`` starts the ranks of a host with torch's elastic agent, ``rank`` is where each rank begins, ``recorder``
turns what a loop says into records, ``arrival`` times the end of backward, ``host`` (with ``kernel``) describes the
machine, ``sidecar`` samples its counters (``roster``, ``family`` and ``ledger`` those of ranks, ``gauges`` and ``gpus``
those of the host) and compares its clock with another host's (``clocks``). All but ``family`` and ``gauges`` are
standard library and torch, for Python 3.9 and newer.
"""
