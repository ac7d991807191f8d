"""The terms of one step of a job, in seconds; their sum is the step."""

from __future__ import annotations

import math

import numpy as np

from allpull.predict.calibration.calibrated import Calibration
from allpull.predict.calibration.crowding import GROWTH, crowded
from allpull.predict.calibration.parameters import Floats
from allpull.predict.job import Job
from allpull.predict.terms.algorithms import ALGORITHMS
from allpull.predict.terms.exchange import bucket_seconds, exposed, overlapped
from allpull.predict.terms.input import Input, wait

COMPUTE, INPUT, LATENESS, EXCHANGE, COLLECTIVES = "compute", "input", "lateness", "exchange", "other collectives"
"""Terms of a step."""


def step_terms(job: Job, calibration: Calibration) -> dict[str, Floats]:
    """Seconds of each term in a step of ``job``, (draws,) each.

    Compute is a rank's mean work. Lateness is by how much the last rank is later than the mean one; exchange is what
    follows the last gradient of the last rank.
    """
    parameters = calibration.parameters
    more = crowded(job.ranks_per_host, calibration.crowding, parameters.get(GROWTH))
    work_s = calibration.compute.seconds(job.batch) * more
    assert calibration.largest.batch is not None
    longer = work_s / calibration.compute.seconds(calibration.largest.batch)
    share = job.batch / calibration.largest.batch if calibration.largest.loads_itself else 1.0
    terms = {COMPUTE: work_s, INPUT: parameters.get("input wait") * share}
    if job.ranks > 1:
        lead_s = calibration.lead_s * longer[:, None, None]
        seconds = buckets_s(job, calibration)
        reductions = max(calibration.largest.per_step, 1)
        terms[COMPUTE] = work_s + parameters["overlap slow-down"] * overlapped(seconds, lead_s) * reductions
        terms[LATENESS] = calibration.lateness.seconds(job.ranks, job.hosts) * longer
        terms[EXCHANGE] = exposed(seconds, lead_s) * reductions + parameters["end of reduction"]
        if "other collectives" in parameters and calibration.largest.ranks > 1:
            grown = math.log2(job.ranks) / math.log2(calibration.largest.ranks) - 1
            growth = 1 + parameters["growth of other collectives"] * grown
            terms[COLLECTIVES] = parameters["other collectives"] * growth
    if "input per batch" in parameters:
        busy_s = np.sum([seconds for name, seconds in terms.items() if name != INPUT], axis=0)
        terms[INPUT] = wait(_input_s(job, calibration), busy_s)
    if calibration.input is not None:
        busy_s = np.sum([seconds for name, seconds in terms.items() if name != INPUT], axis=0)
        terms[INPUT] = np.maximum(terms[INPUT], wait(_probed_s(job, calibration.input), busy_s))
    factor = 1 + parameters.get("model error")
    return {name: seconds * factor for name, seconds in terms.items()}


def _input_s(job: Job, calibration: Calibration) -> Floats:
    """What the loader of a rank needs for a batch of ``job``, (draws,): workers share it evenly."""
    assert calibration.largest.batch is not None
    share = job.batch / calibration.largest.batch
    if job.workers is not None and calibration.job.workers is not None:
        share *= calibration.job.workers / job.workers
    seconds: Floats = calibration.parameters["input per batch"] * share
    return seconds


def _probed_s(job: Job, limits: Input) -> Floats:
    """What a full host needs to prepare the samples of a step, (draws,), by the limits that probes show."""
    workers = None if job.workers is None else float(job.workers * job.ranks_per_host)
    return limits.seconds(job.batch * job.ranks_per_host, job.hosts, workers)


def buckets_s(job: Job, calibration: Calibration) -> Floats:
    """How long each bucket takes, (draws, buckets), each draw with its own algorithm."""
    size_bytes = np.array(job.bucket_bytes, dtype=np.float64)
    parameters = calibration.parameters
    latency_s = (parameters.get("local latency"), parameters.get("network latency"))
    s_per_byte = (parameters.get("local time per byte"), parameters.get("network time per byte"))
    shape = calibration.algorithm.shape
    each = np.empty((len(calibration.algorithms), *shape, size_bytes.size))
    for place, name in enumerate(calibration.algorithms):
        each[place] = bucket_seconds(
            ALGORITHMS[name](job.ranks, job.hosts),
            size_bytes,
            latency_s=(np.broadcast_to(latency_s[0], shape), np.broadcast_to(latency_s[1], shape)),
            s_per_byte=(np.broadcast_to(s_per_byte[0], shape), np.broadcast_to(s_per_byte[1], shape)),
        )
    chosen: Floats = each[calibration.algorithm, np.arange(shape[0])]
    return chosen
