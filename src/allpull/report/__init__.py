"""Show the results: one HTML page, figures for a proposal, tables on a terminal.

Everything is drawn from a ``schema.reported.ScalingReport`` alone; drawing libraries are imported only
by the modules that draw, so that a table on a terminal does not load them.
"""
