"""Wrap the entry points of an observed program, each kind separately: if one fails, the others still work."""

from __future__ import annotations

import atexit
import signal
import threading
from types import ModuleType
from typing import TYPE_CHECKING, Callable, Optional, Protocol

from .imports import AfterImport
from .inference.first_batches import FirstBatches
from .inference.marks_listener import listen
from .inference.step_inference import StepInference
from .session import BOUNDARY, Session
from .stalls import Stalls
from .torch.arrays import watch_arrays
from .torch.collectives import PACKAGES, Collectives
from .torch.ddp_settings import Settings
from .torch.environments import ENVIRONMENTS, watch_environments, watch_sampling
from .torch.functional import FUNCTIONAL, watch_functional
from .torch.input_shapes import InputShapes
from .torch.loader_workers import LoaderWorkers
from .torch.loaders import watch_loaders
from .torch.nccl_log import NcclLog
from .torch.networks import Networks, watch_gradients
from .torch.optimizers import watch_optimizers, watch_scalers
from .torch.profiler_windows import Buckets, Windows
from .torch.replicas import Replicas, checked_every
from .torch.saving import SAVERS, watch_saving

if TYPE_CHECKING:
    from .device.timing import Device

    class _Part(Protocol):
        def at_step(self, step: int) -> None: ...

    class _LastingPart(_Part, Protocol):
        def finish(self) -> None: ...


class Program:
    """The wrapped entry points of this process, and their listeners."""

    def __init__(self, session: Session, after_import: AfterImport) -> None:
        self.session = session
        self.inference = StepInference(session)
        self._after_import = after_import
        self._collectives = Collectives(self.inference)
        self._stalls = Stalls(self.inference)
        self._install("stalls", self._stalls.watch)
        session.at_begin.append(self._handle_signals)
        session.at_close.append(self.inference.finish)
        session.at_close.append(NcclLog(session).finish)
        atexit.register(session.close)

    def torch_imported(self) -> None:
        """Wrap the entry points of torch, which has just been imported."""
        inference, networks = self.inference, Networks(self.inference)
        workers = LoaderWorkers(inference)
        self._install("loaders", lambda: watch_loaders(inference, workers))
        self._install("loader workers", workers.watch)
        self._install("arrays", lambda: watch_arrays(inference))
        self._install("networks", networks.watch)
        self._install("gradients", lambda: watch_gradients(inference, networks))
        self._install("optimizers", lambda: watch_optimizers(inference, networks.given_to))
        self._install("scalers", lambda: watch_scalers(inference))
        self._install("collectives", self._collectives.watch)
        device = self._device()
        attach = inference.reduces if device is None else device.reduces
        self._install("post-accumulate-hook", lambda: networks.watch_arrivals(attach))
        self._install("buckets", lambda: self._at_boundary(Buckets(inference, networks.parallel)))
        self._install("DDP settings", lambda: self._settings(inference, networks))
        self._install("input shapes", lambda: self._add(InputShapes(inference, networks)))
        self._install("first batches", lambda: self._add(FirstBatches(inference)))
        every = checked_every(self.session.job)
        if every:
            self._install("replicas", lambda: self._add(Replicas(inference, networks, every)))
        if self.session.job.watch.trace_every:
            self._install("windows", lambda: self._at_boundary(self._windows()))
        self._when("torch._dynamo.eval_frame", networks.compiled)
        self._when("torch._dynamo.callback", self._stalls.compiler_imported)
        self._when(FUNCTIONAL, lambda module: watch_functional(module, self._collectives, inference))
        for name in PACKAGES:
            self._after_import.when(name, lambda module: self._collectives.unobserved(module.__name__))
        self._try("sampling", lambda: watch_sampling(inference))
        for name in ENVIRONMENTS:
            self._after_import.when(name, watch_environments(inference))
        saving = watch_saving(inference)
        for name in SAVERS:
            self._after_import.when(name, saving)

    def _at_boundary(self, part: "_Part") -> None:
        self.inference.boundary.add(part.at_step)

    def _device(self) -> "Optional[Device]":
        """The timer of an accelerator, if torch was built for one."""
        from torch import version  # noqa: PLC0415  this runs after torch was imported

        if version.cuda is None and getattr(version, "hip", None) is None:
            return None
        from .device.timing import Device  # noqa: PLC0415  without an accelerator none of it is needed

        device = Device(self.inference)
        self.session.at_begin.append(device.begin)
        self.session.at_close.append(device.finish)
        self._install("device", lambda: self._at_boundary(device))
        return device

    def _add(self, part: "_LastingPart") -> None:
        self._at_boundary(part)
        self.session.at_close.append(part.finish)

    def _settings(self, inference: StepInference, networks: Networks) -> None:
        settings = Settings(inference, networks.parallel, self._collectives)
        self._add(settings)
        self._try("comm hooks", settings.watch_hooks)

    def _windows(self) -> Windows:
        watch = self.session.job.watch
        windows = Windows(self.inference, every=watch.trace_every, steps=watch.trace_steps, first=watch.trace_first)
        windows.watch()
        self.session.at_close.append(windows.finish)
        return windows

    def wait_imported(self, module: ModuleType) -> None:
        """A module was imported that waits for collectives, other than ``torch.distributed``."""
        self._try(module.__name__, lambda: self._collectives.wait_imported(module))

    def marks_imported(self, marks: ModuleType) -> None:
        """The program imported ``allpull.marks``."""
        self._install("marks", lambda: listen(self.inference, marks))

    def _when(self, name: str, wrap: Callable[[ModuleType], None]) -> None:
        """Wrap entry points of module ``name``, which torch imports on demand."""

        def imported(module: ModuleType) -> None:
            self._try(name, lambda: wrap(module))

        self._after_import.when(name, imported)

    def _install(self, part: str, wrap: Callable[[], None]) -> None:
        if self._try(part, wrap):
            self.session.sources.append(part)

    def _try(self, part: str, wrap: Callable[[], None]) -> bool:
        try:
            wrap()
        except Exception as error:  # noqa: BLE001  most likely another version of torch: do without this part
            self.session.part_failed(part, error)
            return False
        return True

    def _handle_signals(self) -> None:
        """SIGUSR2 stops and starts recording, unless the program handles it itself."""
        in_main = threading.current_thread() is threading.main_thread()
        if in_main and hasattr(signal, "SIGUSR2") and signal.getsignal(signal.SIGUSR2) == signal.SIG_DFL:
            signal.signal(signal.SIGUSR2, self.inference.boundary.toggle)


def start(job_file: str, after_import: AfterImport, boundary: str = BOUNDARY) -> Program:
    """Observe this process as ``job_file`` specifies; ``boundary`` names what ends a step.

    Raises:
        OSError: the job file cannot be read.
        ValueError: it is damaged.
    """
    return Program(Session(job_file, boundary), after_import)
