"""How ranks share a training step."""
