"""Save the state of a training, resume from it, and read checkpoints of unknown origin safely."""
