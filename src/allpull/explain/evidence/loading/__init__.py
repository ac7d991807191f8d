"""How fast loaders make batches, and what they read."""
