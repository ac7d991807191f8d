"""The process per host that starts ranks: ``python -m allpull.observe.agent``."""
