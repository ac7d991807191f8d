"""One term of a step or an epoch per file: its equation, its source and its fit; pure arithmetic on arrays of draws."""
