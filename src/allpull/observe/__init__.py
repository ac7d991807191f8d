"""What runs on every host of an observed job.

``agent`` starts the ranks of a host with torch's elastic agent, ``rank`` is where each rank begins, ``recorder``
turns what a loop says into records, ``arrival`` times the end of backward, ``host`` (with ``kernel``) describes the
machine, ``sidecar`` (with ``family`` and ``ledger``) samples its counters. All but ``sidecar`` and ``family`` are
standard library and torch, for Python 3.9 and newer.
"""
