"""allpull: run, measure, explain and predict synchronous data-parallel training.

Words for any training loop, free when nobody observes it::

    import allpull
    with allpull.phase("augment"): ...
    allpull.step(samples=64)
    allpull.epoch(3)
"""

from allpull.marks import epoch as epoch
from allpull.marks import phase as phase
from allpull.marks import step as step

__version__ = "0.1.0"
