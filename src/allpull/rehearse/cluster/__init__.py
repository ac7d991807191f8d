"""The cluster file: its records, checks and faults."""
