"""Compare two sides of runs: is there a difference, how large is it, and how certain."""
