"""Turn the measurements of probes into their results."""
