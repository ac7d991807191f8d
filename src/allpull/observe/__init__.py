"""What runs on every host of an observed job.

``agent`` starts the ranks of a host with torch's elastic agent, ``rank`` is where each rank begins, ``recorder``
turns what a loop says into records, ``arrival`` times the end of backward, ``host`` and ``sidecar`` look at the
machine. All but ``sidecar`` are standard library and torch, for Python 3.9 and newer.
"""
