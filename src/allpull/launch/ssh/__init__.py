"""Run jobs on hosts that ssh reaches."""
