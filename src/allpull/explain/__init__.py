"""What measurements mean, in plain words."""
