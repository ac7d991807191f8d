"""Larger sizes of a table that has rates alone, from its smallest ones."""
