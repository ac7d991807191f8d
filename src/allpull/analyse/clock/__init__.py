"""Put the clocks of hosts on one time line, from recorded pings, with bounds that hold."""
