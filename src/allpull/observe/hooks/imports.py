"""Do something right after a module was imported, whoever imports it, and leave no trace otherwise.

A finder at the head of ``sys.meta_path`` lets the others find the module and adds to what loading it does.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional

if TYPE_CHECKING:
    from .install import Program

After = Callable[[ModuleType], None]


class AfterImport(MetaPathFinder):
    """Calls each registered function once, with its module, right after that was imported.

    ``failed`` is told of an error in one of them, which the importing program never sees.
    """

    def __init__(self, failed: Callable[[Exception], None]) -> None:
        self._failed = failed
        self._waiting: Dict[str, List[After]] = {}
        self._finding: List[str] = []

    def when(self, name: str, call: After) -> None:
        """Call ``call`` after ``name`` was imported; at once where it is there already."""
        if name in sys.modules and getattr(sys.modules[name].__spec__, "_initializing", False) is False:
            self._call(call, sys.modules[name])
        else:
            self._waiting.setdefault(name, []).append(call)

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Optional[ModuleSpec]:  # noqa: ARG002
        """Let the other finders find ``fullname``, and have its loader tell us when it is done."""
        if fullname not in self._waiting or fullname in self._finding:
            return None
        self._finding.append(fullname)
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._finding.remove(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Telling(spec.loader, self)
        return spec

    def imported(self, module: ModuleType) -> None:
        """``module`` is complete."""
        while module.__name__ in self._waiting:  # what is called may ask for the same module
            for call in self._waiting.pop(module.__name__):
                self._call(call, module)

    def _call(self, call: After, module: ModuleType) -> None:
        try:
            call(module)
        except Exception as error:  # noqa: BLE001  ours, not the program's
            self._failed(error)


def watched() -> AfterImport:
    """Hear of imports from now on."""

    def unwatched(error: Exception) -> None:
        sys.stderr.write(f"allpull: not observed: {error!r}\n")

    found = AfterImport(unwatched)
    sys.meta_path.insert(0, found)
    return found


def wait(job_file: str) -> None:
    """Have this process watched as ``job_file`` says, as soon as it imports torch or speaks to allpull itself."""
    found = watched()

    @functools.lru_cache(maxsize=1)
    def program() -> Program:
        from .install import start  # noqa: PLC0415  most processes need none of it

        return start(job_file, found)

    found.when("torch", lambda _: program().torch_imported())
    found.when(
        "horovod.torch.mpi_ops", lambda waiting: program().wait_imported(waiting)
    )  # it may be what imports torch
    found.when("allpull.marks", lambda marks: program().marks_imported(marks))


class _Telling(Loader):
    """A loader that does what another one does, and says when it is done."""

    def __init__(self, real: Loader, told: AfterImport) -> None:
        self._real = real
        self._told = told

    def create_module(self, spec: ModuleSpec) -> Optional[ModuleType]:
        return self._real.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._real  # the program sees the loader that it would have without us
        module.__loader__ = self._real
        self._real.exec_module(module)
        self._told.imported(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)
