"""What a suspected fault costs, and what its removal would gain."""
