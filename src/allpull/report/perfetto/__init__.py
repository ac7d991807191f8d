"""A run as a timeline for Perfetto's UI."""
