"""The virtual cluster: hosts, links and clocks of a cluster file, and one more launcher that runs ranks on them.

``cluster/`` holds what a cluster file may contain, and reads one. ``launcher`` starts ``host.keeper``, which makes the
hosts as network namespaces (``host.namespaces``, ``host.network``), starts the ranks in them (``ranks.fork_server``),
plants the faults of links, and removes everything. ``host.ownership`` finds what a killed owner left behind.
"""
