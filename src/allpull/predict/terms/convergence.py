"""Epochs to a target against the global batch: E(B) = E0 (1 + B / Bc).

With B samples per step, a target takes S_min (1 + Bc / B) steps (McCandlish et al. 2018, "An empirical model of
large-batch training"). E0 and Bc belong to a recipe: network, optimizer, target, data and augmentation (Shallue et al.
2019 measure how far they differ), so points of two recipes never share a fit, and nothing here has defaults of its own.

Points are fitted by least squares of ln E. Draws come from a residual bootstrap; on top of each comes a residual of the
size that an unmeasured batch has, because recipes change with the batch by more than the form does: among MLPerf's own
reference points 3,264 samples take 35 epochs and 4,096 take 40.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from allpull.errors import BadInput

Floats = npt.NDArray[np.float64]

FURTHEST = 2.0  # × the largest batch: fitted to 13,056 or less, MLPerf's points beyond 32,768 are 11 to 18 % off
RECIPE_RESIDUAL = 0.05  # of ln E between batches of one recipe: MLPerf's reference points have 0.04 to 0.05
RESIDUAL_WORTH = 4  # points: what RECIPE_RESIDUAL weighs beside the residuals of a fit
_GRID = 3000  # candidates of 1 ÷ Bc over nine decades: steps of 0.7 %, a tenth of what ten points can tell


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Convergence:
    """E0 and Bc of one recipe; arrays have shape (draws,), and ``critical_batch`` is inf where E does not grow.

    ``residual`` is ln(true ÷ fitted) at a batch that was not measured. ``smallest`` and ``largest`` are the global
    batches of the fit, ``fit`` its E0 and Bc without a draw.
    """

    first_epochs: Floats
    critical_batch: Floats
    residual: Floats
    smallest: float
    largest: float
    fit: tuple[float, float]

    def epochs(self, global_batch: float) -> Floats:
        """Epochs to the target at ``global_batch``, of shape (draws,)."""
        return self.first_epochs * (1 + global_batch / self.critical_batch) * np.exp(self.residual)

    def fitted_epochs(self, global_batch: float) -> float:
        """The same by the fit alone."""
        first, critical = self.fit
        return first * (1 + global_batch / critical)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EpochsToTarget:
    """Draws of the epochs at one global batch; where the points cannot tell them, bounds and the reason instead.

    ``low`` and ``high`` are None where the points give no bound on that side.
    """

    draws: Floats | None
    low: float | None = None
    high: float | None = None
    reason: str | None = None


def fitted(
    points: Sequence[tuple[float, float]], rng: np.random.Generator, draws: int, *, resolution: float = 0.0
) -> Convergence:
    """The convergence of one recipe, from ``points`` of (global batch, epochs) at two batches or more.

    ``resolution``: epochs between two evaluations of one training; 0 for means of many.

    Raises:
        BadInput: a point is no pair of positive numbers, or all have one batch.

    >>> exact = fitted([(1000, 11.0), (2000, 12.0), (8000, 18.0)], np.random.default_rng(0), 8)
    >>> [float(f"{number:.2g}") for number in exact.fit]
    [10.0, 10000.0]
    """
    batches, log_epochs = _checked(points)
    if len(set(batches.tolist())) < 2:
        raise BadInput("one global batch does not tell how the epochs grow with it", hint="add a run at another batch")
    first, critical = (float(one[0]) for one in _least_squares(batches, log_epochs[None]))
    on_curve = np.log(first * (1 + batches / critical))
    free = max(0, len(points) - 2)
    residuals = log_epochs - on_curve
    again = residuals[rng.integers(len(points), size=(draws, len(points)))]
    again *= math.sqrt(len(points) / free) if free else 1.0  # residuals of a fit are smaller than errors
    first_draws, critical_draws = _least_squares(batches, on_curve + again)
    return Convergence(
        first_epochs=first_draws,
        critical_batch=critical_draws,
        residual=_residuals(float((residuals**2).sum()), free, rng, draws)
        + _rounding(log_epochs, resolution, rng, draws),
        smallest=float(batches.min()),
        largest=float(batches.max()),
        fit=(first, critical),
    )


def epochs_to_target(
    points: Sequence[tuple[float, float]],
    global_batch: float,
    rng: np.random.Generator,
    draws: int,
    *,
    resolution: float = 0.0,
) -> EpochsToTarget:
    """Epochs to the target of ``points`` at ``global_batch``: draws, or bounds with the reason.

    ``resolution``: epochs between two evaluations of one training; 0 for means of many. Only E(B) not falling with B,
    and E(B) ÷ B not growing, which E0 and Bc above 0 imply, make the bounds.

    Raises:
        BadInput: a point, or ``global_batch``, is no positive number.
    """
    batches, log_epochs = _checked([*points, (global_batch, 1.0)])
    batches, log_epochs = batches[:-1], log_epochs[:-1]
    if not len(batches):
        raise BadInput("no training reached the target", hint="name a published recipe, or state the epochs")
    if len(set(batches.tolist())) > 1:
        convergence = fitted(points, rng, draws, resolution=resolution)
        if convergence.smallest / FURTHEST <= global_batch <= convergence.largest * FURTHEST:
            return EpochsToTarget(draws=convergence.epochs(global_batch))
        if global_batch > convergence.largest:
            least = float(np.quantile(convergence.epochs(convergence.largest), 0.05))
            return EpochsToTarget(draws=None, low=least, reason=_too_far(global_batch, convergence.largest, "largest"))
        most = float(np.quantile(convergence.epochs(convergence.smallest), 0.95))
        return EpochsToTarget(draws=None, high=most, reason=_too_far(global_batch, convergence.smallest, "smallest"))
    known, ratio = float(batches[0]), global_batch / float(batches[0])
    squares = float(((log_epochs - log_epochs.mean()) ** 2).sum())
    residuals = _residuals(squares, len(points) - 1, rng, draws) + _rounding(log_epochs, resolution, rng, draws)
    at_known = np.exp(log_epochs.mean() + residuals)
    if ratio == 1:
        return EpochsToTarget(draws=at_known)
    low, high = (float(bound) for bound in np.quantile(at_known, (0.05, 0.95)))
    reason = f"all trainings that reached the target have a global batch of {known:,.0f}: how epochs grow is not known"
    if ratio > 1:
        return EpochsToTarget(draws=None, low=low, high=high * ratio if ratio <= FURTHEST else None, reason=reason)
    return EpochsToTarget(draws=None, low=low * ratio if ratio >= 1 / FURTHEST else None, high=high, reason=reason)


def _too_far(global_batch: float, known: float, which: str) -> str:
    return (
        f"a global batch of {global_batch:,.0f} is more than {FURTHEST:g} times away from {known:,.0f}, the {which} one"
        " whose epochs are known"
    )


def _checked(points: Sequence[tuple[float, float]]) -> tuple[Floats, Floats]:
    """Batches and ln epochs."""
    table = np.array(points, dtype=float).reshape(-1, 2)
    if not (np.isfinite(table).all() and (table > 0).all()):
        raise BadInput("a global batch and its epochs are positive numbers", hint="such as 3264 samples and 35 epochs")
    return table[:, 0], np.log(table[:, 1])


def _least_squares(batches: Floats, log_epochs: Floats) -> tuple[Floats, Floats]:
    """E0 and Bc ≥ 0 of each row of ``log_epochs`` (rows, points); the best of ``_GRID`` candidates of 1 ÷ Bc."""
    inverse = np.concatenate([[0.0], np.geomspace(1e-4 / batches.max(), 1e4 / batches.min(), _GRID)])
    form = np.log1p(inverse[:, None] * batches)
    centred = form - form.mean(axis=1, keepdims=True)
    rows = log_epochs - log_epochs.mean(axis=1, keepdims=True)
    squares = (centred**2).sum(axis=1) - 2 * rows @ centred.T  # less the rows' own, which no candidate changes
    best = squares.argmin(axis=1)
    first = np.exp(log_epochs.mean(axis=1) - form[best].mean(axis=1))
    with np.errstate(divide="ignore"):
        return first, 1 / inverse[best]


def _residuals(squares: float, free: int, rng: np.random.Generator, draws: int) -> Floats:
    """Student's t with the variance of the fit and of ``RECIPE_RESIDUAL``, weighted by their points."""
    weight = RESIDUAL_WORTH + free
    scale = math.sqrt((RESIDUAL_WORTH * RECIPE_RESIDUAL**2 + squares) / weight)
    return scale * rng.standard_t(weight, draws)


def _rounding(log_epochs: Floats, resolution: float, rng: np.random.Generator, draws: int) -> Floats:
    """By how much ln E may be off because a target is noticed at an evaluation only: of 3 epochs, up to a sixth."""
    if not resolution:
        return np.zeros(draws)
    return rng.uniform(-0.5, 0.5, draws) * resolution / float(np.exp(log_epochs.mean()))
