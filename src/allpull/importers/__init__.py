"""Traces of others become run directories: what torch.profiler and the flight recorder wrote, read with suspicion."""
