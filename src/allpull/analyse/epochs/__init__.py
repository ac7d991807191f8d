"""Epochs of the job: their parts, and the time to the last one or to an accuracy."""
