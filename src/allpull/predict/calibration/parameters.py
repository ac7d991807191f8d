"""Parameters of the model with their draws: uncertainty passes through a term by computing all draws at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
State = Literal["measured", "weakly identified", "assumed"]

DRAWS = 400  # the 5 % quantile then rests on 20 draws
LOW, HIGH = 0.05, 0.95  # of the draws: a 90 % interval


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Parameter:
    """One parameter: ``draws`` of shape (draws,), or (draws, buckets) for one that each bucket has.

    ``reason`` says why it is not measured, ``source`` where its value comes from: run ids, a stated fact or a paper.
    ``measure`` is the command that would measure it better; None where it is measured.
    """

    name: str
    unit: str
    draws: Floats
    state: State
    source: str
    reason: str | None = None
    measure: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Parameters:
    """All parameters of a forecast, by name; arrays of one draw belong together along the first axis."""

    by_name: Mapping[str, Parameter] = field(default_factory=dict)

    @classmethod
    def of(cls, parameters: Iterable[Parameter]) -> Parameters:
        """``parameters`` by their names."""
        return cls(by_name={one.name: one for one in parameters})

    def __getitem__(self, name: str) -> Floats:
        """The draws of ``name``."""
        return self.by_name[name].draws

    def __contains__(self, name: str) -> bool:
        return name in self.by_name

    def get(self, name: str, default: float = 0.0) -> Floats:
        """The draws of ``name``, or ``default`` where there is no such parameter."""
        return self.by_name[name].draws if name in self.by_name else np.array(default)

    def replaced(self, name: str, draws: Floats) -> Parameters:
        """The same with other ``draws`` of ``name``, as a what-if asks for."""
        return Parameters(by_name={**self.by_name, name: replace(self.by_name[name], draws=draws)})
