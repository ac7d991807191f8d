"""The hosts of a virtual cluster: namespaces, links, clocks, and the process that keeps them."""
