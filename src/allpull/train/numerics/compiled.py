"""Compile a network with ``torch.compile``, and fall back to eager execution, with the reason, if that fails.

Each graph is compiled at its first call, its backward with it, so that a failure shows before either has run and costs
only the attempt: the graph then runs eagerly, with the same result. This holds for each graph separately, also within
DistributedDataParallel, where a rank that runs eagerly still exchanges the same gradients as the others.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn

GRAPHS = 64  # training and evaluation at many image sizes; beyond torch's default of 8 it would silently run eagerly
WRITE_OF_OTHERS = stat.S_IWGRP | stat.S_IWOTH
CACHE_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
LONGEST_REASON = 300  # characters; compilers add pages of their own


class Compiled:
    """``torch.compile`` in ``mode`` of ``train.compile``; "none" leaves networks unchanged.

    Call it with a network to compile that in place: its parameters keep their names. Within DistributedDataParallel
    the first call must be that of the wrapped network: a graph that was captured outside is not split at bucket
    boundaries and would send all gradients after backward.
    """

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self._graphs = 0
        self._failure = ""

    def __call__(self, module: nn.Module) -> nn.Module:
        """``module`` itself, which is compiled when it is called."""
        if self.mode == "none":
            return module
        try:
            import torch._dynamo.config as settings  # noqa: PLC0415  takes seconds, only on request

            _use_private_cache()
            settings.cache_size_limit = GRAPHS
            settings.suppress_errors = True  # code that cannot be traced runs eagerly too
            # one graph per shape: a ragged batch would otherwise switch to slower dynamic shapes
            module.compile(backend=self._backend, dynamic=False)
        except Exception as error:  # noqa: BLE001  any failure: the network runs eagerly
            self._failure = _short_reason(error)
        return module

    def plain(self) -> AbstractContextManager[None]:
        """Run networks eagerly in this context, as for ragged batches, whose shapes are not worth a compilation.

        Before torch 2.6 they are compiled nevertheless.
        """
        if self.mode == "none" or not hasattr(torch.compiler, "set_stance"):
            return nullcontext()
        stance: AbstractContextManager[None] = torch.compiler.set_stance("force_eager")
        return stance

    def why_not(self) -> str:
        """Why the network, or a part of it, runs eagerly, known after the first step; "" if it does not."""
        if self.mode == "none" or self._failure or self._graphs:
            return self._failure
        return "torch.compile found nothing in the network that it could compile"

    def _backend(self, graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """The backend given to ``torch.compile``: inductor, or eager execution once that has failed."""
        if not self._failure:
            try:
                compiled = self._inductor(graph, inputs)
                self._graphs += 1
            except Exception as error:  # noqa: BLE001  compilers raise anything
                self._failure = _short_reason(error)
            else:
                return compiled
        eager: Callable[..., Any] = graph.forward
        return eager

    def _inductor(self, graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        import torch._functorch.config as aot  # noqa: PLC0415  as above
        import torch._inductor as inductor  # noqa: PLC0415  as above

        # Otherwise backward is compiled, and fails, when it first runs. Older versions lack the setting.
        early = "force_non_lazy_backward_lowering"
        with aot.patch({early: True}) if hasattr(aot, early) else nullcontext():
            compiled: Callable[..., Any] = inductor.compile(
                graph, list(inputs), options=inductor.list_mode_options(self.mode)
            )
        return compiled


def _use_private_cache() -> None:
    """Let inductor keep what it compiles where no other user of this host can put code.

    It executes what it finds in its cache, and that is a folder of the temporary directory with a name that anybody
    can take first. A folder elsewhere was chosen by the user.
    """
    chosen, shared = os.environ.get(CACHE_VARIABLE), Path(tempfile.gettempdir())
    if chosen and Path(chosen).absolute().parent != shared:  # torch sets the variable to its own default
        return
    folder = shared / f"torchinductor_allpull_{os.getuid()}"
    with suppress(FileExistsError):
        folder.mkdir(0o700)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & WRITE_OF_OTHERS:
        folder = Path(tempfile.mkdtemp(prefix="torchinductor_"))
    os.environ[CACHE_VARIABLE] = str(folder)


def _short_reason(error: Exception) -> str:
    """The first line of the error."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"torch.compile failed: {lines[0] if lines else type(error).__name__}"[:LONGEST_REASON]
