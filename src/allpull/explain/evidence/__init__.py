"""What rules look at: who is late, what the machine did, how the network behaved."""
