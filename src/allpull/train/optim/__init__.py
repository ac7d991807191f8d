"""Optimizers, learning-rate schedules, master weights, and the moving average of weights."""
