"""Starting jobs: ``job`` prepares a run directory, a launcher runs it, ``outcome`` says how it ended."""
