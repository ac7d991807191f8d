"""The virtual cluster: hosts, links and clocks of a cluster file, and one more launcher that runs ranks on them.

``cluster`` and ``faults`` say what a cluster file may hold, ``read`` reads one. ``launcher`` starts ``keeper``, which
makes the hosts as network namespaces (``namespaces``, ``network``), starts the ranks in them (``ranks.nursery``),
plants the faults of links, and takes all of it down. ``state`` finds what a killed owner left behind.
"""
