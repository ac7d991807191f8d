"""Rates of reading and writing, from the counters of ranks and hosts."""
