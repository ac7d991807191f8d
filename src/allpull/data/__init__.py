"""Data on its way to a rank: packs and their sources, JPEG, data sets, and the loader."""
