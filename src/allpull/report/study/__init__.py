"""A study as a page, as figures, and as numbers for a proposal."""
