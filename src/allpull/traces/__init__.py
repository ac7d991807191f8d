"""Read untrusted profiler traces of any size: JSON piece by piece, Kineto events as columns."""
