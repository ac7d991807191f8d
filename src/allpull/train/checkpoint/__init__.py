"""Save where a training stands, and resume from it."""
