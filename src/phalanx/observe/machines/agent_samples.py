"""An agent's readings of its machine, as samples of the run."""

from __future__ import annotations

from typing import Any

import msgspec

from phalanx.observe.events.event_types import MachineSample


class Power(msgspec.Struct, frozen=True, kw_only=True):
    """What a machine counts apart and a sample adds up."""

    gpu_watts: float | None = None
    cpu_watts: float | None = None


def sample_of(tell: dict[str, Any], clock_offset: float = 0.0) -> MachineSample:
    """Another machine's word, so that kinds are checked; ``clock_offset``: seconds from its clock
    to that of the run."""
    sample, power = msgspec.convert(tell, MachineSample), msgspec.convert(tell, Power)
    known = [each for each in (power.cpu_watts, power.gpu_watts) if each is not None]
    return msgspec.structs.replace(
        sample,
        time=sample.time + clock_offset,
        cpu_source=sample.cpu_source[:20] if sample.cpu_source else None,
        watts=sum(known) if known else None,
    )


class ToldSample(MachineSample, frozen=True, kw_only=True):
    """As it is kept: with its moment on the machine's own clock, which no two of a run share."""

    at: float


class SampleReader:
    """Samples of one machine in order; what is no sample, or goes back in time, is passed over."""

    def __init__(self) -> None:
        self._last = float("-inf")

    def go_on_after(self, last: ToldSample) -> None:
        """Those up to this one have been read before."""
        self._last = last.at

    def read(self, tell: dict[str, Any], clock_offset: float = 0.0) -> ToldSample | None:
        try:
            sample = sample_of(tell)
        except msgspec.ValidationError:
            return None
        if sample.time <= self._last:
            return None
        self._last = sample.time
        known = msgspec.structs.asdict(sample)
        return ToldSample(**{**known, "time": sample.time + clock_offset}, at=sample.time)
