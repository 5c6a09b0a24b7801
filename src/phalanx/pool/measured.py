"""The figures of a probe of machines and links, kept beside the blueprint for later planning.

Those of ``pool.yaml`` are in ``pool.probe.json``. Latencies are seconds one way, bandwidths
bytes per second in one direction.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import msgspec

from phalanx.core.errors import InputError
from phalanx.core.files import read_bounded, write_asked

FORMAT = 1
SUFFIX = ".probe.json"
SIZE_LIMIT = 16 << 20
CPU = "CPU"
Seconds = Annotated[float, msgspec.Meta(ge=0.0, le=1e6)]
Rate = Annotated[float, msgspec.Meta(gt=0.0, le=1e18)]


class LinkFigures(msgspec.Struct, frozen=True):
    """One direction of a link."""

    source: str
    target: str
    latency: Seconds
    bandwidth: Rate
    handling: Seconds | None = None
    """Seconds that the processor of ``source`` takes for each byte, sent or received."""


class CollectiveFigures(msgspec.Struct, frozen=True):
    """One collective at one size: median seconds, and the seconds of the cost formula."""

    name: str
    bytes: int
    measured: Seconds
    predicted: Rate
    repeats: int

    @property
    def ratio(self) -> float:
        return self.measured / self.predicted


class LeftOut(msgspec.Struct, frozen=True):
    """A measurement that was left out for lack of time."""

    what: str
    bytes: int | None = None


class Trouble(msgspec.Struct, frozen=True):
    """A machine, or a pair of them, that could not be measured."""

    machines: list[str]
    cause: str
    remedy: str


class DeviceRates(msgspec.Struct, frozen=True):
    """The rates of a machine's cores (``CPU``), or of one GPU of a model; ``count``: how many."""

    name: str
    count: int
    float32: Rate | None
    """GFLOP/s of products of matrices; ``None`` is unknown."""
    bfloat16: Rate | None
    memory: Rate | None
    """GB/s read and written by a copy."""
    watts: Rate | None = None
    """Power under load, if the device measures it itself."""


class MachineRates(msgspec.Struct, frozen=True):
    """The hardware of one machine, and how fast it computes."""

    machine: str
    cores: int
    memory: int | None
    gpus: list[str]
    """The model of each GPU."""
    devices: list[DeviceRates]

    @property
    def speed(self) -> float | None:
        """GFLOP/s in float32 of all the machine's GPUs, or of its cores if it has none."""
        fast = [d for d in self.devices if d.name != CPU] or self.devices
        rates = [d.float32 * d.count for d in fast if d.float32 is not None]
        return sum(rates) if rates else None


class Probe(msgspec.Struct, frozen=True):
    """All figures of one probe."""

    date: str
    """When the probe ended: ISO 8601, UTC."""
    seconds: float
    budget: float
    machines: list[str]
    """Machines that answered."""
    links: list[LinkFigures]
    collectives: list[CollectiveFigures] = []
    participants: list[str] = []
    """The machines that the collectives ran on: all that reach each other."""
    message_seconds: float | None = None
    """Seconds of handling one small message, fitted to the collectives of the smallest size."""
    left_out: list[LeftOut] = []
    trouble: list[Trouble] = []
    emulated: bool = False
    format: int = FORMAT
    rates: list[MachineRates] = []

    def rates_of(self, machine: str) -> MachineRates | None:
        """Return the rates of ``machine``; ``None`` if it was not measured."""
        return next((each for each in self.rates if each.machine == machine), None)

    def link(self, source: str, target: str) -> LinkFigures | None:
        """The link from ``source`` to ``target``; ``None`` if it was not measured."""
        return next((k for k in self.links if (k.source, k.target) == (source, target)), None)


def among(probe: Probe, names: Iterable[str]) -> list[LinkFigures]:
    """Return the links among some machines, in both directions."""
    chosen = set(names)
    return [k for k in probe.links if k.source in chosen and k.target in chosen]


def slowest(probe: Probe, names: Iterable[str]) -> tuple[float, float] | None:
    """Return the longest latency and the least bandwidth, for ``Collective`` and ``choose``.

    A collective waits for its slowest link. ``None`` unless every pair was measured.
    """
    chosen = sorted(set(names))
    found = among(probe, chosen)
    if not found or len(found) < len(chosen) * (len(chosen) - 1):
        return None
    return max(k.latency for k in found), min(k.bandwidth for k in found)


def path_beside(blueprint: Path) -> Path:
    """Return the path of a pool's probe."""
    return blueprint.with_suffix(SUFFIX)


def write_probe(probe: Probe, blueprint: Path) -> Path:
    """Write the probe beside its blueprint, with the blueprint's permissions."""
    path = path_beside(blueprint)
    text = msgspec.json.format(msgspec.json.encode(probe), indent=1) + b"\n"
    remedy = "Make that folder writable: the measurements are saved beside the blueprint."
    write_asked(path, text, remedy, blueprint.stat().st_mode & 0o666)
    return path


def read_probe(blueprint: Path) -> Probe | None:
    """Return the probe of a pool; ``None`` if there is none. A damaged file is an error."""
    path = path_beside(blueprint)
    try:
        return msgspec.json.decode(read_bounded(path, SIZE_LIMIT), type=Probe)
    except FileNotFoundError:
        return None
    except (OSError, InputError, msgspec.MsgspecError) as error:
        raise InputError(
            f"{path}: is damaged ({error})", "Remove it, then run: phalanx pool probe"
        ) from None


def best_rates(probe: Probe) -> tuple[dict[str, float], dict[str, float]]:
    """Return the bytes a second that each machine can send, and those that it can receive, over its
    best link: a slower link is limited by its other end."""
    out: dict[str, float] = {}
    into: dict[str, float] = {}
    for link in probe.links:
        out[link.source] = max(out.get(link.source, 0.0), link.bandwidth)
        into[link.target] = max(into.get(link.target, 0.0), link.bandwidth)
    return out, into


def link_rates(probe: Probe) -> dict[str, float]:
    """Return the bits a second of each machine's link, in its slower direction."""
    out, into = best_rates(probe)
    return {name: 8.0 * min(rate, into.get(name, rate)) for name, rate in out.items()}
