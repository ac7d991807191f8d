"""Find out what a machine is fit for.

``doctor`` judges ``facts`` about it, which ``surroundings`` reads.
"""
