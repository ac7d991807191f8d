"""Losses and scores, summed over ranks."""
