"""Read the counters of the accelerators of a host from NVIDIA's driver, through NVML where nvidia-ml-py is installed.

NVML numbers devices in bus order, and lists all that this process may open, regardless of
CUDA_VISIBLE_DEVICES. A counter that a device does not support is left out.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional

MAX_GPUS = 64


class Gpus:
    """The accelerators that ``nvml``, the module of nvidia-ml-py, finds; none without a driver."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._devices: Dict[int, Any] = {}
        try:
            nvml.nvmlInit()
            count = min(nvml.nvmlDeviceGetCount(), MAX_GPUS)
        except nvml.NVMLError:
            return
        for index in range(count):
            try:
                self._devices[index] = nvml.nvmlDeviceGetHandleByIndex(index)
            except nvml.NVMLError:
                continue  # no permission, or it has fallen off the bus

    def sources(self) -> List[str]:
        """The source of the numbers; empty if there is no device."""
        if not self._devices:
            return []
        try:
            return [f"NVML, driver {self._nvml.nvmlSystemGetDriverVersion()}"]
        except self._nvml.NVMLError:
            return ["NVML"]

    def look(self) -> Dict[str, Dict[str, Any]]:
        """``schema.counters.GpuCounters`` of each device, by its index."""
        return {str(index): self._figures(device) for index, device in self._devices.items()}

    def _figures(self, device: Any) -> Dict[str, Any]:
        nvml = self._nvml
        reads: Dict[str, Callable[[], Any]] = {
            "busy_share": lambda: nvml.nvmlDeviceGetUtilizationRates(device).gpu / 100,  # percent
            "memory_used_bytes": lambda: nvml.nvmlDeviceGetMemoryInfo(device).used,
            "clock_hz": lambda: nvml.nvmlDeviceGetClockInfo(device, nvml.NVML_CLOCK_SM) * 1_000_000,
            "power_w": lambda: nvml.nvmlDeviceGetPowerUsage(device) / 1e3,
            "energy_j": lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(device) / 1e3,  # Volta and newer
            "temperature_c": lambda: float(nvml.nvmlDeviceGetTemperature(device, nvml.NVML_TEMPERATURE_GPU)),
        }
        figures: Dict[str, Any] = {}
        for name, read in reads.items():
            try:
                figures[name] = read()
            except nvml.NVMLError:
                continue
        return figures


def find_gpus() -> Optional[Gpus]:
    """The accelerators of this host; None where nvidia-ml-py is not installed."""
    try:
        import pynvml  # type: ignore[import-not-found, unused-ignore]  # noqa: PLC0415  optional; this is the name of its module
    except ImportError:
        return None
    return Gpus(pynvml)
