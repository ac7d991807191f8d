"""What runs on every host of an observed job, by the process that it runs in.

``agent`` starts the ranks of a host with torch's elastic agent, ``rank`` is where each rank begins, ``hooks`` observe a
program from inside, ``recording`` writes its steps and events, and ``sidecar`` samples counters while the ranks run:
``rank_registry``, ``process_tree`` and ``process_usage`` those of ranks, ``host_counters`` and ``gpus`` those of the
host. ``clock_pings`` compares the clocks of hosts, and ``host`` (with ``kernel``) describes the machine. All but
``process_tree`` and ``host_counters`` are standard library and torch, for Python 3.9 and newer.
"""
