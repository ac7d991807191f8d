"""Packs: a data set as a few large files. Written, read, described and verified."""
