"""Labs: small experiments that show on one page what a loss curve cannot; each is real, and starts in a second."""

from __future__ import annotations

LABS = {
    "sgd": "the path of gradient descent on a line, for a batch of any size, on one rank or several real ones",
    "ring": "how gradients are summed over a ring: chunks, messages and bytes, counted at real sockets",
}
"""Name → what it shows."""
