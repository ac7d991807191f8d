"""Data sets as a few large files: the format, its writer, its reader, its verifier, and the sources it is made of."""
