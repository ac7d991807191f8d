"""The public API: what ``import allpull`` offers, and what the command line is built on."""
