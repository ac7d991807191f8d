"""Micro-benchmarks of what limits a job, and ``doctor``, which judges the facts that ``machine_facts`` reads."""
