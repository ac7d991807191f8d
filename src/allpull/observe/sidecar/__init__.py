"""The process per host that samples counters beside the ranks: ``python -m allpull.observe.sidecar``."""
