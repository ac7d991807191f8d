"""Find the largest batch whose training step fits into memory, by doubling and then by bisection.

On a GPU torch reports what does not fit, and how much was used. On CPUs the system would take memory from others, or
end them: there a process of its own tries each batch, below a limit that the kernel enforces (RLIMIT_DATA, of private
writable memory), and it is the first to be ended if the machine runs short all the same.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import torch

from allpull.errors import BadInput
from allpull.kernel import Tree, memory_left
from allpull.probe.setting import Setting
from allpull.probe.step_timing import Trained, set_precision
from allpull.rundir.job_file import JobFile
from allpull.units import show_bytes

FIRST = 2  # batch statistics need two values
MOST = 1 << 20
RESOLUTION = 32  # the search ends when the next batch that was tried and failed is within 1/32
DEFAULT_SHARE = 0.5  # of the memory that is free now, on CPUs
PATIENCE_S = 120.0  # a step that would take longer is not tried
MEMORY_WORDS = ("memory", "alloc")  # in what torch and oneDNN raise when there is not enough

Peak = int | None  # bytes in use at most during a step; None: it does not fit


def search(fits: Callable[[int], Peak], most: int = MOST) -> tuple[dict[int, int], int | None]:
    """Peak memory of each batch that fits, and the smallest one that does not; None: up to ``most`` all fit.

    >>> peaks, too_large = search(lambda batch: 10 * batch if batch <= 208 else None)
    >>> max(peaks), too_large
    (208, 212)
    """
    peaks: dict[int, int] = {}
    batch, too_large = FIRST, None
    while too_large is None and batch <= most:
        peak = fits(batch)
        if peak is None:
            too_large = batch
        else:
            peaks[batch], batch = peak, batch * 2
    low = max(peaks, default=0)
    while too_large is not None and too_large - low > max(1, low // RESOLUTION):
        middle = (low + too_large) // 2
        peak = fits(middle)
        if peak is None:
            too_large = middle
        else:
            peaks[middle], low = peak, middle
    return peaks, too_large


def largest(
    setting: Setting, job: JobFile, job_file: str, precision: str, left_out: list[str]
) -> dict[str, Any] | None:
    """The largest batch of ``precision``, as ``schema.probes.LargestBatch``; None: none could be tried.

    Raises:
        BadInput: the memory limit is less than what torch takes alone.
    """
    limit = int(job.options.get("memory_limit") or 0)
    on_gpu = setting.device.type == "cuda"
    limit = limit or (torch.cuda.mem_get_info(setting.device)[0] if on_gpu else free_bytes(DEFAULT_SHARE))
    reasons: list[str] = []
    trials = gpu_trials(setting, precision, limit) if on_gpu else cpu_trials(job_file, precision, limit, reasons)
    with trials as fits:
        peaks, too_large = search(patient(fits, reasons))
    left_out += [f"largest batch, {precision}: {reason}" for reason in dict.fromkeys(reasons)]
    if not peaks:
        if not reasons:
            left_out.append(f"largest batch, {precision}: not even one sample fits into {show_bytes(limit)}")
        return None
    batch = max(peaks)
    smaller = max((other for other in peaks if other <= batch // 2), default=None)
    per_sample = None if smaller is None else (peaks[batch] - peaks[smaller]) / (batch - smaller)
    return {
        "precision": precision,
        "batch": batch,
        "too_large": None if reasons else too_large,
        "peak_bytes": peaks[batch],
        "bytes_per_sample": per_sample if per_sample is None or per_sample > 0 else None,
        "limit_bytes": limit,
    }


def patient(fits: Callable[[int], Peak], reasons: list[str]) -> Callable[[int], Peak]:
    """``fits``, which ends the search with a reason where a step would take longer than ``PATIENCE_S``."""
    s_per_sample = 0.0

    def tried(batch: int) -> Peak:
        nonlocal s_per_sample
        if s_per_sample * batch > PATIENCE_S:
            reasons.append(f"batches of {batch:,} were not tried: a step would take some {s_per_sample * batch:.0f} s")
            return None
        began = time.perf_counter()
        peak = fits(batch)
        s_per_sample = (time.perf_counter() - began) / batch
        return peak

    return tried


def free_bytes(share: float) -> int:
    """``share`` of the memory that this host, and the control groups of this process, have left."""
    allowed = memory_left(Tree())
    available = int(psutil.virtual_memory().available)
    return int(share * (available if allowed is None else min(available, allowed)))


def is_memory_fault(fault: BaseException) -> bool:
    """Whether ``fault`` is that of too little memory."""
    if isinstance(fault, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(fault, RuntimeError) and any(word in str(fault).lower() for word in MEMORY_WORDS)


def take_step(setting: Setting, model: torch.nn.Module, batch: int, precision: str) -> None:
    """Two steps: gradients and the optimizer's state are in memory in the second."""
    trained = Trained(model, images=setting.images(batch), classes=setting.classes, precision=precision)
    for _ in range(2):
        trained.step(lambda: None)


@contextmanager
def gpu_trials(setting: Setting, precision: str, limit: int) -> Iterator[Callable[[int], Peak]]:
    """Tries batches on this process's GPU, in at most ``limit`` bytes."""
    device = setting.device
    total = torch.cuda.get_device_properties(device).total_memory
    set_precision(precision)

    def fits(batch: int) -> Peak:
        torch.cuda.reset_peak_memory_stats(device)
        try:
            take_step(setting, setting.model(), batch, precision)
            torch.cuda.synchronize(device)
        except RuntimeError as fault:
            if not is_memory_fault(fault):
                raise
            return None
        finally:
            gc.collect()
            torch.cuda.empty_cache()
        return int(torch.cuda.max_memory_allocated(device))

    torch.cuda.set_per_process_memory_fraction(min(1.0, limit / total), device)
    try:
        yield fits
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)


@contextmanager
def cpu_trials(job_file: str, precision: str, limit: int, reasons: list[str]) -> Iterator[Callable[[int], Peak]]:
    """Tries batches in a process of at most ``limit`` bytes, a new one after each that did not fit."""
    command = [sys.executable, "-m", "allpull.probe.largest_batch", job_file, precision, str(limit)]
    running: list[subprocess.Popen[str]] = []

    def fits(batch: int) -> Peak:
        if not running:
            running.append(
                subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
                )
            )
        answer = _ask(running[0], batch)
        if "peak" in answer:
            return int(answer["peak"])
        end()
        if "needs" in answer:
            raise BadInput(
                f"--memory-limit {show_bytes(limit)}: torch and the model take {show_bytes(answer['needs'])} alone",
                hint="give more",
            )
        if answer.get("fault"):
            reasons.append(f"batch {batch:,}: {answer['fault']}")
        return None

    def end() -> None:
        for process in running:
            process.kill()
            process.communicate()
        running.clear()

    try:
        yield fits
    finally:
        end()


def _ask(process: subprocess.Popen[str], batch: int) -> dict[str, Any]:
    """The answer to ``batch``; empty where the process ended instead, as it does when memory is short in a thread."""
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(OSError):
        process.stdin.write(f"{batch}\n")
        process.stdin.flush()
    line = process.stdout.readline()
    return json.loads(line) if line.endswith("}\n") else {}


def serve(job_file: str, precision: str, limit: int) -> None:
    """Try each batch that stdin names, within ``limit`` bytes; answer in JSON, and end after one that fails."""
    import resource  # noqa: PLC0415  not on Windows, where nothing limits a process

    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    job = JobFile.read(job_file)
    torch.set_num_threads(max(job.options["threads"]))
    set_precision(precision)
    setting = Setting(job, torch.device("cpu"))
    model = setting.model()
    used, data = _status("VmRSS"), _status("VmData")
    if used >= limit:
        print(json.dumps({"needs": used}), flush=True)  # noqa: T201  the answer
        return
    resource.setrlimit(resource.RLIMIT_DATA, (data + limit - used,) * 2)
    for line in sys.stdin:
        try:
            with suppress(OSError):
                Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # resets VmHWM
            take_step(setting, model, int(line), precision)
            answer: dict[str, Any] = {"peak": _status("VmHWM")}
        except Exception as fault:  # noqa: BLE001  all are answers
            is_memory = is_memory_fault(fault)
            answer = {"fault": "" if is_memory else (str(fault).splitlines() or [type(fault).__name__])[0][:200]}
        print(json.dumps(answer), flush=True)  # noqa: T201  the answer
        if "fault" in answer:
            return


def _status(name: str) -> int:
    """A size of this process in ``/proc/self/status``, bytes."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0]) * 1024
    return 0


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2], int(sys.argv[3]))
