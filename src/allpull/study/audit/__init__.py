"""Check published measurements against themselves: what they state against what follows from their other numbers."""
