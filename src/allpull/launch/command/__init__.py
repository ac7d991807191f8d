"""Run a user's command, observed."""
