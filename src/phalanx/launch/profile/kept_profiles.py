"""Reads and writes profiles of earlier plans, by a digest of what they depend on; groups machines
that need not be measured twice, and scales costs from one machine to another."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Sequence
from pathlib import Path

import msgspec

from phalanx.agent.machine.facts import cpu_model
from phalanx.core.errors import PhalanxError
from phalanx.core.files import cache_home, read_bounded, write_whole
from phalanx.core.script.script_imports import script_files
from phalanx.core.settings import RunSettings
from phalanx.core.version import __version__
from phalanx.launch.shipping.requirements import installed
from phalanx.plan.job import JobProfile, MachineCosts
from phalanx.pool.machine import Machine
from phalanx.pool.measured import CPU, DeviceRates, Probe

_LARGEST = 4 << 20


def job_key(script: Path, arguments: Sequence[str], chosen: RunSettings) -> str:
    """Return a digest of what a job's costs depend on, besides the machine."""
    digest = hashlib.sha256()
    plain = msgspec.structs.replace(chosen, profile=None, virtual=None, seed=0, strategy="single")
    for file in script_files(script):
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    rest = [str(script.resolve()), *arguments, plain.to_json(), __version__]
    rest.append(installed(("torch",)).get("torch", ""))
    digest.update(msgspec.json.encode(rest))
    return digest.hexdigest()


def _file(key: str, kind: str) -> Path:
    name = hashlib.sha256(f"{key} {kind}".encode()).hexdigest()
    return cache_home() / "profiles" / f"{name}.json"


def read_kept(key: str, kind: str) -> JobProfile | None:
    """Read a kept profile; ``None`` also if the file is damaged, as it will be written anew."""
    try:
        kept = msgspec.json.decode(read_bounded(_file(key, kind), _LARGEST), type=JobProfile)
    except (OSError, PhalanxError, msgspec.MsgspecError):
        return None
    return kept if kept.key == key and len(kept.costs) == 1 else None


def keep(key: str, kind: str, profile: JobProfile) -> None:
    path = _file(key, kind)
    with contextlib.suppress(OSError):  # it only makes the next plan faster
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, msgspec.json.encode(profile))


SCALED_ERROR = 0.3
"""The relative error of costs that were scaled by the measurements of a probe."""
GUESSED_ERROR = 0.6
"""The relative error of costs that were scaled by cores, or from another kind of device."""


class Kinds:
    """Sorts machines into kinds by their blueprint and their probe, if there was one."""

    def __init__(self, probe: Probe | None) -> None:
        self._probe = probe

    def _device(self, machine: Machine) -> DeviceRates | None:
        """Return the rates of the device on which one worker of ``machine`` computes."""
        rates = self._probe.rates_of(machine.name) if self._probe else None
        devices = rates.devices if rates else []
        fast = [d for d in devices if (d.name != CPU) == (machine.gpus > 0)]
        return next(iter(fast or devices), None)

    def name(self, machine: Machine) -> str:
        """Return the name of the machine's kind: only one machine of each kind is measured. Without
        a probe, every machine is a kind of its own."""
        device = self._device(machine)
        what = cpu_model() if machine.is_here else f"{machine.host}:{machine.port}"
        if device is not None and device.float32 and not machine.is_here:
            what = f"{device.name} {device.float32:.2g} {device.memory or 0:.2g}"
        return f"{what} cores={machine.cores} gpus={machine.gpus} emulated={machine.emulated}"

    def scaled(self, costs: MachineCosts, source: Machine, target: Machine) -> MachineCosts:
        """Return costs on ``source`` as they may be on ``target``."""
        one, other = self._device(source), self._device(target)
        factor, alike = (source.cores or 1) / (target.cores or source.cores or 1), False
        if one is not None and other is not None and one.float32 and other.float32:
            factor, alike = one.float32 / other.float32, one.name == other.name
        error = max(costs.work.error, SCALED_ERROR if alike else GUESSED_ERROR)
        fixed, each = costs.work.fixed * factor, costs.work.each * factor
        work = msgspec.structs.replace(
            costs.work, fixed=fixed, each=each, error=error, extrapolated=True
        )
        # Reading samples and starting were no part of the comparison.
        update, evaluate = costs.update * factor, costs.evaluate * factor
        return msgspec.structs.replace(costs, work=work, update=update, evaluate=evaluate)
