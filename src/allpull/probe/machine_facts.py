"""What is known of a machine that measurements depend on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of a machine; None where it does not say."""

    load_1min: float | None = None
    logical_cpus: int | None = None
    physical_cores: int | None = None
    usable_cpus: int | None = None  # by affinity
    quota_cpus: float | None = None  # None: no limit
    omp_num_threads: str | None = None  # None: the variable is not set
    clock_source: str | None = None
    governors: frozenset[str] | None = None
    frequency_driver: str | None = None
    turbo: bool | None = None
    shm_free_bytes: int | None = None  # in /dev/shm
    file_system: str | None = None  # of the run directory
    free_bytes: int | None = None  # there
    memory_available_bytes: int | None = None
    swap_used_bytes: int | None = None
    open_files: int | None = None  # soft limit
    hypervisor: bool | None = None
    stolen_share: float | None = None  # of CPU time since boot
    container: str | None = None
    python: str
    versions: Mapping[str, str | None]  # of numpy and torch; None: not installed
    torch_trouble: str | None = None  # None: not tried; empty: it works

    @property
    def cores(self) -> float | None:
        """CPUs that ranks can keep busy."""
        known = [count for count in (self.usable_cpus or self.logical_cpus, self.quota_cpus) if count is not None]
        return min(known, default=None)
