"""The process per host that samples counters while the ranks run: ``python -m allpull.observe.sidecar``."""
