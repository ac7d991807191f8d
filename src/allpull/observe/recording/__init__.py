"""What a rank records of its steps."""
