"""Show what was found: one HTML page, figures for a proposal, tables on a terminal.

Everything here is drawn from a ``schema.reported.ScalingReport`` and nothing else; drawing libraries are imported
by the modules that draw, so that a table on a terminal costs none of them.
"""
