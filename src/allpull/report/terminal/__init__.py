"""Results as text on a terminal of any width."""
