"""What others measured and published: tables with their sources, and how they are read."""
