"""Align the clocks of hosts by recorded pings, with bounds on the error."""
