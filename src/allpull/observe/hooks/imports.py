"""Call functions right after a module is imported, with no other effect on the program.

A finder at the head of ``sys.meta_path`` lets the other finders find the module, and wraps its loader.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional

if TYPE_CHECKING:
    from .install import Program

After = Callable[[ModuleType], None]


IMPORT_TORCH = ("bagua", "deepspeed", "hivemind", "ray.util.collective", "safetensors.torch", "torch_xla")
"""Observed modules that import torch: if a program imports one of them first, functions are registered amid its import.
"""


class AfterImport(MetaPathFinder):
    """Calls each registered function once, with its module, right after the import.

    An error in one of them goes to ``failed``; the importing program never sees it.
    """

    def __init__(self, failed: Callable[[Exception], None]) -> None:
        self._failed = failed
        self._waiting: Dict[str, List[After]] = {}
        self._finding: List[str] = []

    def when(self, name: str, call: After) -> None:
        """Call ``call`` after the import of ``name``; at once if it is imported already."""
        if name in sys.modules and getattr(sys.modules[name].__spec__, "_initializing", False) is False:
            self._call(call, sys.modules[name])
        else:
            self._waiting.setdefault(name, []).append(call)

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Optional[ModuleSpec]:  # noqa: ARG002
        """Let the other finders find ``fullname``, and wrap its loader."""
        if not (fullname in self._waiting or fullname in IMPORT_TORCH) or fullname in self._finding:
            return None
        self._finding.append(fullname)
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._finding.remove(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _WrappedLoader(spec.loader, self)
        return spec

    def imported(self, module: ModuleType) -> None:
        """``module`` has been executed: call the functions that wait for it."""
        while module.__name__ in self._waiting:  # a called function may register for the same module
            for call in self._waiting.pop(module.__name__):
                self._call(call, module)

    def _call(self, call: After, module: ModuleType) -> None:
        try:
            call(module)
        except Exception as error:  # noqa: BLE001  ours, not the program's
            self._failed(error)


def watched() -> AfterImport:
    """An ``AfterImport`` that is active from now on."""

    def unwatched(error: Exception) -> None:
        if os.path.exists(__file__):  # else the job has ended, with its hook, and this process outlives it
            sys.stderr.write(f"allpull: not observed: {error!r}\n")

    after_import = AfterImport(unwatched)
    sys.meta_path.insert(0, after_import)
    return after_import


def wait(job_file: str) -> None:
    """Observe this process as ``job_file`` specifies, as soon as it imports torch or ``allpull.marks``."""
    after_import = watched()

    @functools.lru_cache(maxsize=1)
    def program() -> Program:
        from .install import start  # noqa: PLC0415  most processes need none of it

        return start(job_file, after_import)

    after_import.when("torch", lambda _: program().torch_imported())
    after_import.when(
        "horovod.torch.mpi_ops", lambda waiting: program().wait_imported(waiting)
    )  # it may be imported before torch
    after_import.when("allpull.marks", lambda marks: program().marks_imported(marks))


class _WrappedLoader(Loader):
    """A loader that delegates to another one, and reports when the module has been executed."""

    def __init__(self, real: Loader, after: AfterImport) -> None:
        self._real = real
        self._after = after

    def create_module(self, spec: ModuleSpec) -> Optional[ModuleType]:
        return self._real.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._real  # the program sees its own loader
        module.__loader__ = self._real
        self._real.exec_module(module)
        self._after.imported(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)
