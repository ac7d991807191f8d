"""From what a user asks for to a finished run directory: what ``train``, ``run``, ``rehearse`` and probes share."""
