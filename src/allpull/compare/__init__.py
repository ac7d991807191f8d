"""Compare two groups of runs: whether they differ, by how much, and how certain that is."""
