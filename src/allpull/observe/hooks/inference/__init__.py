"""Infer phases, steps and epochs from the observed calls of a program."""
