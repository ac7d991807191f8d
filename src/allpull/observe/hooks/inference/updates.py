"""Notice updates of parameters that no ``torch.optim.Optimizer`` makes, from one parameter that gets gradients.

Every in-place operation on a tensor raises its version, at no cost to us. ``parameter.data`` shares no version with
its parameter: where a program updates through it, cleared gradients end a step, and where not even these show, what
comes next in the loop does.
"""

from __future__ import annotations

import weakref
from typing import Any, Dict, List, Optional, Set

PARAMETER_UPDATE = "parameter.update"
GRADIENT_CLEARED = "gradient.clear"
NEXT_BATCH = "loader.next"
BACKWARD = "backward"
UNCHANGED = 8  # backward passes with no visible update before the loop's next action is taken for the end of a step
MOST_NODES = 200_000  # of a graph that is searched for parameters


class Updates:
    """The parameter by which updates are noticed; ``boundary`` is the sign of the last one, None before the first."""

    def __init__(self) -> None:
        self.boundary: Optional[str] = None
        self._parameter: "Optional[weakref.ref[Any]]" = None
        self._version = 0
        self._gradient_version: Optional[int] = None
        self._unchanged = 0  # backward passes since the last visible update

    @property
    def has_parameter(self) -> bool:
        """Whether there is a parameter to look at; it may have been freed."""
        return self._parameter is not None and self._parameter() is not None

    @property
    def may_be_another(self) -> bool:
        """Whether it is time to see if the program trains another network since the last visible update."""
        unchanged = self._unchanged
        return unchanged > 1 and not unchanged & (unchanged - 1)  # ever more seldom: a graph may be large

    def is_among(self, found: List[Any]) -> bool:
        """Whether the parameter is one of ``found``."""
        parameter = None if self._parameter is None else self._parameter()
        return any(one is parameter for one in found)

    def choose(self, parameter: Any) -> None:
        """Notice updates by this parameter from now on."""
        self._parameter = weakref.ref(parameter)

    def after_backward(self) -> None:
        """A backward pass ended: later changes are updates."""
        parameter = None if self._parameter is None else self._parameter()
        if parameter is not None:
            self._version = parameter._version
            self._gradient_version = _version(parameter.grad)
        self._unchanged += 1

    def happened(self, *, at_fetch: bool, has_optimizers: bool) -> bool:
        """Whether parameters were updated since the last backward pass.

        ``at_fetch``: the program is about to fetch a batch. With ``has_optimizers``, which may still step, only a new
        version of the parameter is a sign: it may accumulate gradients for long.
        """
        if self._parameter is None:
            return False
        parameter = self._parameter()
        if parameter is None:  # its network is gone: that tells nothing of how it was updated
            self.boundary = self.boundary or PARAMETER_UPDATE
        elif parameter._version != self._version:
            self.boundary = PARAMETER_UPDATE
        elif has_optimizers or self.boundary == PARAMETER_UPDATE:
            return False
        elif _version(parameter.grad) != self._gradient_version:
            self.boundary = GRADIENT_CLEARED
        elif self.boundary == GRADIENT_CLEARED or self._unchanged < UNCHANGED:
            return False
        elif at_fetch:
            self.boundary = NEXT_BATCH
        elif self.boundary == NEXT_BATCH:
            return False
        else:
            self.boundary = BACKWARD
        if self.boundary in (PARAMETER_UPDATE, GRADIENT_CLEARED):
            self._unchanged = 0
        return True


def leaves(tensors: Any) -> List[Any]:
    """The leaves that a backward pass from ``tensors`` gives gradients, nearest first; parameters before others."""
    from torch import nn  # noqa: PLC0415  this runs after torch was imported

    starts = tensors if isinstance(tensors, (list, tuple)) else [tensors]
    nodes = [node for node in (getattr(tensor, "grad_fn", None) for tensor in starts) if node is not None]
    visited: Set[Any] = set(nodes)  # holds the nodes, whose wrappers would be made again, with another identity
    found: Dict[int, Any] = {}
    for node in nodes:  # grows while it is read: breadth first
        if hasattr(node, "variable"):
            found.setdefault(id(node.variable), node.variable)
        for next_node, _ in node.next_functions:
            if next_node is not None and next_node not in visited and len(visited) < MOST_NODES:
                visited.add(next_node)
                nodes.append(next_node)
    return sorted(found.values(), key=lambda leaf: not isinstance(leaf, nn.Parameter))


def _version(gradient: Any) -> Optional[int]:
    return None if gradient is None else gradient._version
