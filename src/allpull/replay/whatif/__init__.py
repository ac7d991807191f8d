"""What if this were gone, or faster? Each question makes a window from a window; the replay of it is the answer."""
