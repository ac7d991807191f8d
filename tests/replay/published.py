"""Published efficiencies of a real code, and windows that have them: for the tree and for POP."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.replay.windows import rotating, window

from allpull.replay.window import Window

PUBLISHED = {
    64: (32.554688, 33.338641, 39.388323, 40.009749, 0.984468, 0.846409, 0.976485, 0.813669),
    128: (13.426047, 14.003071, 18.433987, 19.656685, 0.937797, 0.759633, 0.958793, 0.683027),
    256: (7.402236, 7.826016, 11.941295, 14.083169, 0.847913, 0.655374, 0.945850, 0.525609),
    512: (4.234199, 4.605570, 8.514002, 13.792879, 0.617275, 0.540941, 0.919365, 0.306984),
    1024: (2.769027, 3.137317, 7.168600, 17.400619, 0.411974, 0.437647, 0.882610, 0.159134),
}
"""Processes → mean and largest computation, time on an ideal network and measured time in s, and what was published
for transfer, serialisation, load balance and parallel efficiency: a strong scaling of a real code on 768 to 12,288
cores, by the critical-path tool of RWTH Aachen (github.com/RWTH-HPC/OTF-CPT, script/data at commit 9c7f09a; Protze et
al. 2022, "On-the-Fly Calculation of Model Factors for Multi-paradigm Applications", Euro-Par)."""


def as_published(processes: int, samples: float = 1e6) -> Window:
    """A window with the mean and the largest computation, the ideal and the measured time of a published run.

    In each of 8 steps another rank has d more to do than most; the least of the others' work makes the mean.
    """
    steps = 8
    mean_s, largest_s, ideal_s, measured_s, *_ = PUBLISHED[processes]
    more_s = (ideal_s - largest_s) / (steps - 1)
    usual_s = (largest_s - more_s) / steps
    work = np.full((steps, processes), (processes * mean_s - steps * largest_s) / (processes - steps) / steps)
    work[:, :steps] = usual_s + rotating(steps, steps, by_s=more_s)
    assert work.min() > 0
    assert work.max() == pytest.approx(usual_s + more_s)
    made = window(processes, steps, backward=work, bucket_s=(measured_s - ideal_s) / steps, recorded_s=0.0,
                  samples=samples / processes / steps)  # fmt: skip
    return replace(made, measured_s=measured_s)
