"""Record the window that a replay plays, from the records of a run."""
