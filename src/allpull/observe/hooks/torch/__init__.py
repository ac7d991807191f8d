"""Wrapped entry points of torch, one file per kind."""
