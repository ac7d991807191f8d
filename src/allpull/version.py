"""The version of this allpull, for whatever records it: no other room needs the package's face for that."""

__version__ = "0.1.0"
