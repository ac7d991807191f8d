"""Labs: small experiments that show on one page what a loss curve cannot; each is real, and starts in a second."""

from __future__ import annotations

LABS = {
    "sgd": "the path of gradient descent on a line, for a batch of any size, on one rank or several real ones",
    "ring": "how gradients are summed over a ring: chunks, messages and bytes, counted at real sockets",
    "straggler": "one slow rank, one slow loader, one thin link: guess from the timeline, then see what explain says",
    "overlap": "buckets of gradients, when they are ready, and what backward hides, for each bucket size",
    "batch": "why more ranks need not be faster: samples/s, epochs and time to a target against the global batch",
}
"""Name → what it shows."""
