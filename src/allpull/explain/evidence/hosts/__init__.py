"""What the hosts of a run are, and how the network between them behaved."""
