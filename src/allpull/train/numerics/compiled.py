"""Have ``torch.compile`` translate a network, and let it run as it is where that fails, saying why.

Each graph is translated at the first call that needs it, its backward with it, so that a failure shows before either
has run and costs nothing but the attempt: the graph then runs as torch's own operations, with the same result. That
holds for every graph by itself, also within DistributedDataParallel, where a rank that runs untranslated still
exchanges the same gradients as the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

GRAPHS = 64  # training and evaluation at many sizes of picture; beyond torch's own 8 it would run untranslated, unsaid
LONGEST_REASON = 300  # characters; compilers add pages of their own


class Compiled:
    """``torch.compile`` in ``mode`` of ``train.compile``; "none" leaves networks alone.

    Call it with a network to have that one translated in place: its parameters keep their names. Within
    DistributedDataParallel the first call must be that of the wrapped network, since a graph that was made outside of
    it is not cut where its buckets end, and would send all gradients after backward.
    """

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self._graphs = 0
        self._failure = ""

    def __call__(self, module: nn.Module) -> nn.Module:
        """``module`` itself, which is translated when it is called."""
        if self.mode == "none":
            return module
        try:
            import torch._dynamo.config as settings  # noqa: PLC0415  seconds, for those who asked for it

            settings.cache_size_limit = GRAPHS
            settings.suppress_errors = True  # what cannot even be made a graph runs as it is, too
            # each shape has a graph of its own: one ragged batch would turn them into a slower one for all shapes
            module.compile(backend=self._translate, dynamic=False)
        except Exception as error:  # noqa: BLE001  whatever it is, the network runs without
            self._failure = _shortly(error)
        return module

    def plain(self) -> AbstractContextManager[None]:
        """Within it networks run untranslated, as a ragged batch should, whose shape is not worth a translation.

        Before torch 2.6 they are translated nevertheless.
        """
        if self.mode == "none" or not hasattr(torch.compiler, "set_stance"):
            return nullcontext()
        stance: AbstractContextManager[None] = torch.compiler.set_stance("force_eager")
        return stance

    def why_not(self) -> str:
        """Why the network, or a part of it, runs untranslated, to be asked after a first step; "": it does not."""
        if self.mode == "none" or self._failure or self._graphs:
            return self._failure
        return "torch.compile found nothing in the network that it could translate"

    def _translate(self, graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """The backend that ``torch.compile`` is given: its own, or ``graph`` as it is where that fails or once did."""
        if not self._failure:
            try:
                translated = self._inductor(graph, inputs)
                self._graphs += 1
            except Exception as error:  # noqa: BLE001  compilers fail in ways of their own
                self._failure = _shortly(error)
            else:
                return translated
        untranslated: Callable[..., Any] = graph.forward
        return untranslated

    def _inductor(self, graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        import torch._functorch.config as ahead  # noqa: PLC0415  as above
        import torch._inductor as inductor  # noqa: PLC0415  as above

        # Backward is otherwise translated when it first runs, and then fails there. Older versions lack the setting.
        early = "force_non_lazy_backward_lowering"
        with ahead.patch({early: True}) if hasattr(ahead, early) else nullcontext():
            translated: Callable[..., Any] = inductor.compile(
                graph, list(inputs), options=inductor.list_mode_options(self.mode)
            )
        return translated


def _shortly(error: Exception) -> str:
    """What went wrong, without the pages that follow."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"torch.compile failed: {lines[0] if lines else type(error).__name__}"[:LONGEST_REASON]
