"""Which ranks are late, in which steps, and by how much; what else explains it."""
