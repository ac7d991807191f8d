"""The best setting of a study's parameters within a budget: measured, stopped early where hopeless, confirmed."""
