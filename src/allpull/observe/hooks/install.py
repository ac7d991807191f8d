"""Wrap the entry points of a program that is observed, each kind on its own: one that fails leaves the others."""

from __future__ import annotations

import atexit
import signal
import threading
from types import ModuleType
from typing import TYPE_CHECKING, Callable, Optional

from .imports import AfterImport
from .inference.marks_listener import listen
from .inference.step_inference import Watcher
from .session import BOUNDARY, Session
from .torch.collectives import FUNCTIONAL, Collectives
from .torch.gradients import watch_gradients
from .torch.loaders import watch_loaders
from .torch.networks import Networks
from .torch.optimizers import watch_optimizers, watch_scalers
from .torch.profiler_windows import Buckets, Windows
from .torch.saving import SAVERS, watch_saving

if TYPE_CHECKING:
    from .device.timing import Device


class Program:
    """What is wrapped in this process, and who listens there."""

    def __init__(self, session: Session, found: AfterImport) -> None:
        self.session = session
        self.watcher = Watcher(session)
        self._found = found
        self._collectives = Collectives(self.watcher)
        session.at_begin.append(self._hear_signals)
        session.at_close.append(self.watcher.finish)
        atexit.register(session.close)

    def torch_came(self) -> None:
        """Wrap what torch has, which was imported just now: its entry points."""
        watcher, networks = self.watcher, Networks(self.watcher)
        self._install("loaders", lambda: watch_loaders(watcher))
        self._install("networks", networks.watch)
        self._install("gradients", lambda: watch_gradients(watcher, networks.reduced))
        self._install("optimizers", lambda: watch_optimizers(watcher, networks.given_to))
        self._install("scalers", lambda: watch_scalers(watcher))
        self._install("collectives", self._collectives.watch)
        device = self._device(networks.reduced)
        attach = watcher.reduces if device is None else device.reduces
        self._install("post-accumulate-hook", lambda: networks.watch_arrivals(attach))
        self._install("buckets", lambda: self._at_boundary(Buckets(watcher, networks.parallel)))
        if self.session.job.watch.trace_every:
            self._install("windows", lambda: self._at_boundary(self._windows()))
        self._when("torch._dynamo.eval_frame", networks.compiled)
        self._found.when(FUNCTIONAL, self.waiting_came)
        saving = watch_saving(watcher)
        for name in SAVERS:
            self._found.when(name, saving)

    def _at_boundary(self, part: "Windows | Buckets | Device") -> None:
        self.watcher.boundary.tell(part.at_step)

    def _device(self, reduced: Callable[[], bool]) -> "Optional[Device]":
        """What times an accelerator, where torch was built for one."""
        from torch import version  # noqa: PLC0415  this runs after torch was imported

        if version.cuda is None and getattr(version, "hip", None) is None:
            return None
        from .device.timing import Device  # noqa: PLC0415  without an accelerator none of it is needed

        device = Device(self.watcher, reduced)
        self.session.at_begin.append(device.begin)
        self.session.at_close.append(device.finish)
        self._install("device", lambda: self._at_boundary(device))
        return device

    def _windows(self) -> Windows:
        watch = self.session.job.watch
        windows = Windows(self.watcher, every=watch.trace_every, steps=watch.trace_steps, first=watch.trace_first)
        windows.watch()
        self.session.at_close.append(windows.finish)
        return windows

    def waiting_came(self, module: ModuleType) -> None:
        """Something else than ``torch.distributed`` makes the program wait for collectives."""
        self._try(module.__name__, lambda: self._collectives.waiting_came(module))

    def words_came(self, marks: ModuleType) -> None:
        """The program speaks to allpull itself."""
        self._install("marks", lambda: listen(self.watcher, marks))

    def _when(self, name: str, wrap: Callable[[ModuleType], None]) -> None:
        """Wrap what module ``name`` has, which torch imports when it needs it."""

        def came(module: ModuleType) -> None:
            self._try(name, lambda: wrap(module))

        self._found.when(name, came)

    def _install(self, part: str, wrap: Callable[[], None]) -> None:
        if self._try(part, wrap):
            self.session.sources.append(part)

    def _try(self, part: str, wrap: Callable[[], None]) -> bool:
        try:
            wrap()
        except Exception as error:  # noqa: BLE001  another version of torch, most likely: do without this part
            self.session.part_failed(part, error)
            return False
        return True

    def _hear_signals(self) -> None:
        """SIGUSR2 stops and starts recording, where the program has no use of its own for it."""
        in_main = threading.current_thread() is threading.main_thread()
        if in_main and hasattr(signal, "SIGUSR2") and signal.getsignal(signal.SIGUSR2) == signal.SIG_DFL:
            signal.signal(signal.SIGUSR2, self.watcher.boundary.toggle)


def start(job_file: str, found: AfterImport, boundary: str = BOUNDARY) -> Program:
    """Have this process observed as ``job_file`` says; ``boundary`` is how the end of a step is known.

    Raises:
        OSError: the job file cannot be read.
        ValueError: it is damaged.
    """
    return Program(Session(job_file, boundary), found)
