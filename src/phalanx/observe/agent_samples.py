"""What an agent tells of its machine, as a sample of the run."""

from __future__ import annotations

from typing import Any

import msgspec

from phalanx.observe.events import MachineSample


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """An agent's figures; it is another machine's word, so that kinds are checked."""

    time: float
    cpu_percent: float
    memory_bytes: int
    network_bytes_per_second: float
    workers_cpu_percent: float
    workers_memory_bytes: int
    network_received: int | None = None
    network_sent: int | None = None
    disk_bytes_per_second: float | None = None
    gpu_percent: float | None = None
    gpu_memory_bytes: int | None = None
    gpu_watts: float | None = None
    cpu_watts: float | None = None
    cpu_source: str | None = None


def sample_of(tell: dict[str, Any], clock_offset: float = 0.0) -> MachineSample:
    """``clock_offset``: seconds from the machine's clock to that of the run."""
    told = msgspec.convert(tell, Told)
    fields = msgspec.structs.asdict(told)
    watts = [fields.pop(name) for name in ("cpu_watts", "gpu_watts")]
    known = [each for each in watts if each is not None]
    fields["time"] = told.time + clock_offset
    fields["cpu_source"] = told.cpu_source[:20] if told.cpu_source else None
    return MachineSample(**fields, watts=sum(known) if known else None)


class SampleReader:
    """Samples of one machine in order; what is no sample, or goes back in time, is passed over."""

    def __init__(self) -> None:
        self._last = float("-inf")

    def read(self, tell: dict[str, Any], clock_offset: float = 0.0) -> MachineSample | None:
        try:
            sample = sample_of(tell, clock_offset)
        except msgspec.ValidationError:
            return None
        if sample.time <= self._last:
            return None
        self._last = sample.time
        return sample
