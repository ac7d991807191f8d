"""What rules look at: which ranks are late, how loaders keep up, what the hosts are, and all of it as facts."""
