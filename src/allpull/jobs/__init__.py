"""From a user's request to a finished run directory: what ``train``, ``run``, ``rehearse`` and probes share."""
