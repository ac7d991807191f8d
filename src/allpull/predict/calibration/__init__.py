"""From runs, probes and stated facts to parameters with their draws."""
