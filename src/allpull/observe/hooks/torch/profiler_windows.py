"""Run torch's profiler for a few steps at intervals: it shows when each bucket was ready and when it was reduced.

All ranks open their windows at the same steps, so that collectives match. The steps in a window, and the one that
writes the trace, are tagged, and rates exclude them. Once a program makes its own profiler, no more windows are
opened: two cannot run at once, and the second to start would fail or record nothing.
"""

from __future__ import annotations

import functools
import itertools
import os
import tempfile
import time
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple

from ....rundir import layout
from ....rundir.write import private_folder
from ...recording.arrival import sizes_of
from ..inference.step_inference import StepInference
from ..safety import safely

BUCKETS_AT = 4  # DDP rebuilds its buckets after its first step
MOST_GRADIENTS = 10_000  # a line of 100 kB
QUIET = ("KINETO_LOG_LEVEL", "99")  # else kineto logs each window to the program's stderr


class Windows:
    """Profiler windows of ``steps`` steps, the first at step ``first`` and then every ``every`` steps."""

    def __init__(self, inference: StepInference, *, every: int, steps: int, first: int) -> None:
        self.session = inference.session
        self.failed = inference.failed
        self._inference = inference
        self._every = every
        self._steps = steps
        self._first = first
        self._profile: Optional[Any] = None
        self._starts = False  # the profiler being made is ours
        self._theirs = False  # the program has made one
        self._described = False
        self._opened_at = 0
        self._opened_ns = 0

    def watch(self) -> None:
        """Detect profilers that the program makes; called once, after torch was imported."""
        from torch.autograd import profiler as old  # noqa: PLC0415
        from torch.profiler import profiler as new  # noqa: PLC0415

        for holder, name in ((new, "_KinetoProfile"), (old, "profile"), (old, "emit_nvtx"), (old, "emit_itt")):
            if hasattr(holder, name):
                self._wrap(getattr(holder, name))

    def _wrap(self, profiler: Any) -> None:
        construct = profiler.__init__

        @functools.wraps(construct)
        def observed(made: Any, *args: Any, **kwargs: Any) -> None:
            if not self._starts and not self._theirs:
                self._make_way()
            construct(made, *args, **kwargs)

        profiler.__init__ = observed

    @safely("windows")
    def _make_way(self) -> None:
        self._theirs = True
        if self._profile is not None:
            self._close()

    @safely("windows")
    def at_step(self, step: int) -> None:
        """Step ``step`` begins: close the window that is due, and open the next one."""
        recorder = self._inference.recorder
        if recorder is None:
            return
        if self._profile is not None and step >= self._opened_at + self._steps:
            self._close()
        if self._profile is None and step >= self._first and (step - self._first) % self._every == 0:
            if not self._theirs:
                self._open(step)
            elif not self._described:
                self._described = True
                self.session.part_ends("windows", "the program has a profiler of its own")
        if self._profile is not None and "traced" not in recorder.tags:
            recorder.tags.append("traced")

    @safely("windows")
    def finish(self) -> None:
        """The program ends: keep the trace so far."""
        if self._profile is not None:
            self._close()

    def _open(self, step: int) -> None:
        from torch import cuda, profiler  # noqa: PLC0415  this runs after torch was imported

        activities = [profiler.ProfilerActivity.CPU]
        if cuda.is_available():
            activities.append(profiler.ProfilerActivity.CUDA)
        self._starts = True
        try:
            self._profile = profiler.profile(activities=activities, record_shapes=True)
            self._opened_at, self._opened_ns = step, time.monotonic_ns()
            _start_quietly(self._profile)
        finally:
            self._starts = False

    def _close(self) -> None:
        profile, self._profile = self._profile, None
        recorder, identity = self._inference.recorder, self.session.identity
        if profile is None or recorder is None or identity is None:
            return
        profile.stop()
        now = time.monotonic_ns()
        recorder.tags.append("traced")
        name = layout.trace_file(identity.rank, self._opened_at)
        path = os.path.join(self.session.directory, name)
        folder = os.path.dirname(path)
        private_folder(folder)
        with tempfile.TemporaryDirectory(prefix=".", dir=folder) as scratch:
            profile.export_chrome_trace(f"{scratch}/trace.json.gz")  # the suffix makes torch compress it
            os.replace(f"{scratch}/trace.json.gz", path)
        event = {"kind": "trace", "file": name, "first_step": self._opened_at}
        steps = max(1, recorder.step_number - self._opened_at)
        recorder.journal.event({**event, "steps": steps, "begin_ns": self._opened_ns, "end_ns": now}, now)


class Buckets:
    """Record once the buckets of DDP, after it has rebuilt them; ``networks`` returns the live ones by number."""

    def __init__(self, inference: StepInference, networks: Callable[[], Iterable[Tuple[int, Any]]]) -> None:
        self.session = inference.session
        self.failed = inference.failed
        self._inference = inference
        self._networks = networks

    @safely("buckets")
    def at_step(self, step: int) -> None:
        """Step ``step`` begins."""
        recorder = self._inference.recorder
        if recorder is None or step < BUCKETS_AT:
            return
        self._inference.boundary.remove(self.at_step)
        now = time.monotonic_ns()
        for number, network in self._networks():
            logging_data = network._get_ddp_logging_data()
            sizes = sizes_of(logging_data)
            if sizes:
                event = {"kind": "buckets", "step": step, "sizes_bytes": sizes, "network": number}
                gradients = gradients_of(logging_data, _reduced(network))
                recorder.journal.event({**event, "gradients_bytes": gradients, "t_ns": now}, now)


def gradients_of(logging_data: Dict[str, Any], reduced: List[int]) -> List[int]:
    """The sizes of ``reduced`` gradients in the order of reduction, from the data of DDP's logger; []: not known.

    DDP reduces in the order in which gradients were first ready, and before it knows that in the opposite order of its
    parameters. What it logs are places among the parameters that it was given with `requires_grad`, which a program may
    have changed since: so the sizes have to make up the buckets.

    >>> gradients_of({"rebuilt_bucket_sizes": "30, 5", "rebuilt_per_bucket_param_indices": "2 0, 1"}, [10, 5, 20])
    [20, 10, 5]
    >>> gradients_of({"bucket_sizes": "25, 10"}, [10, 5, 20]), gradients_of({"bucket_sizes": "20, 10"}, [10, 5, 20])
    ([20, 5, 10], [])
    """
    text = logging_data.get("rebuilt_per_bucket_param_indices") or ""
    order = [int(place) for place in text.replace(",", " ").split()] or list(reversed(range(len(reduced))))
    if sorted(order) != list(range(len(reduced))) or len(order) > MOST_GRADIENTS:
        return []
    gradients = [reduced[place] for place in order]
    ends = set(itertools.accumulate(gradients))
    bucket_ends = list(itertools.accumulate(sizes_of(logging_data)))
    return gradients if ends.issuperset(bucket_ends) and max(ends) == bucket_ends[-1] else []


def _reduced(network: Any) -> List[int]:
    """The sizes of the parameters whose gradients ``network`` reduces, in its order."""
    ignored = set(getattr(network, "parameters_to_ignore", ()))
    named = ((name, one) for name, one in network.module.named_parameters() if name not in ignored)
    return [one.numel() * one.element_size() for _, one in named if one.requires_grad]


def _start_quietly(profile: Any) -> None:
    name, value = QUIET
    was_set = name in os.environ
    os.environ.setdefault(name, value)
    try:
        profile.start()
    finally:
        if not was_set:
            del os.environ[name]
