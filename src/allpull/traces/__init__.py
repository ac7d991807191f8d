"""Read profiler traces of any size with suspicion: sources, JSON, Kineto events as columns."""
