"""Read the files of a run directory as columns and typed records."""
