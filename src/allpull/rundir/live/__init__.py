"""Follow a job while it runs."""
