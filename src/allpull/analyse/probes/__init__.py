"""From the measurements of a probe to its results."""
