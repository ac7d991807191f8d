"""What simpler arithmetic says of a step, from the measurements of a forecast: rivals in `predict_rehearsed.py`.

All times in s. S bytes of gradients, N ranks, B bytes/s of a link.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence


def ring_s(size_bytes: float, ranks: int, link_bytes_per_s: float) -> float:
    """A ring all-reduce without latency, 2(N-1)/N · S/B (Patarasuk & Yuan 2009, J. Parallel Distrib. Comput. 69).

    >>> ring_s(8e6, 4, 12e6)
    1.0
    """
    return 2 * (ranks - 1) / ranks * size_bytes / link_bytes_per_s


def no_overlap_s(compute_s: float, exchange_s: float) -> float:
    """The step of one rank, and then the exchange: Paleo's form (Qi et al. 2017, ICLR).

    >>> no_overlap_s(0.5, 1.0)
    1.5
    """
    return compute_s + exchange_s


def perfect_overlap_s(compute_s: float, backward_s: float, exchange_s: float) -> float:
    """All of backward hides the exchange.

    >>> perfect_overlap_s(0.5, 0.25, 0.125), perfect_overlap_s(0.5, 0.25, 1.0)
    (0.5, 1.25)
    """
    return compute_s + max(0.0, exchange_s - backward_s)


EXTRAP_POINTS = 5  # of one parameter: Extra-P's `min_measurement_points`
EXTRAP = """
import json, sys
from extrap.entities.callpath import Callpath
from extrap.entities.coordinate import Coordinate
from extrap.entities.experiment import Experiment
from extrap.entities.measurement import Measure, Measurement
from extrap.entities.metric import Metric
from extrap.entities.parameter import Parameter
from extrap.modelers.model_generator import ModelGenerator

asked = json.load(sys.stdin)
experiment, metric, path = Experiment(), Metric("time"), Callpath("step")
experiment.add_parameter(Parameter("p"))
experiment.add_metric(metric)
experiment.add_callpath(path)
for ranks, step_s in asked["measured"]:
    coordinate = Coordinate(ranks)
    experiment.add_coordinate(coordinate)
    experiment.add_measurement(Measurement(coordinate, path, metric, [step_s]))
generator = ModelGenerator(experiment, use_measure=Measure.MEDIAN)
generator.model_all()
(model,) = generator.models.values()
function = model.hypothesis.function
print(json.dumps({"model": str(function), "steps_s": [float(function.evaluate(ranks)) for ranks in asked["ranks"]]}))
"""


def extrap(python: str, measured: Mapping[int, float], ranks: Sequence[int]) -> tuple[str, list[float]]:
    """The function of p ranks that Extra-P picks for steps ``measured`` by ranks, and its steps of ``ranks``.

    Raises:
        ValueError: fewer points than it needs.
        subprocess.CalledProcessError: the interpreter ``python`` has no extrap.
    """
    if len(measured) < EXTRAP_POINTS:
        raise ValueError(f"Extra-P needs {EXTRAP_POINTS} sizes, and there are {len(measured)}")
    asked = json.dumps({"measured": sorted(measured.items()), "ranks": list(ranks)})
    done = subprocess.run([python, "-c", EXTRAP], input=asked, capture_output=True, text=True, check=True)
    answer = json.loads(done.stdout.splitlines()[-1])
    return answer["model"], answer["steps_s"]
