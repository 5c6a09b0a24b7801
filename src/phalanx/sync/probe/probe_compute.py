"""How fast this machine computes: products of matrices, and copies in memory, in bounded time."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import torch

from phalanx.agent.machine import counters, gpus
from phalanx.agent.machine.facts import machine_facts
from phalanx.pool.measured import DeviceRates
from phalanx.sync.probe import probe_messages as m

SMALLEST, LARGEST_ON_CPU, LARGEST_ON_GPU = 128, 2048, 8192
LONG_ENOUGH = 0.05
"""Seconds of one product; a larger one would measure the same."""
COPIED = {"cpu": 64 << 20, "cuda": 512 << 20}
"""Bytes to copy: more than caches hold."""
MOST_MODELS = 4
GIGA = 1e9


def measure_machine(seconds: float) -> m.MachineFigures:
    """Measure the cores, and one GPU of each model, in about a second each."""
    known = machine_facts(Path.home())
    threads = torch.get_num_threads()
    torch.set_num_threads(int(known["cores"]))
    try:
        devices = [_measure(torch.device("cpu"), "CPU", 1, seconds)]
    finally:
        torch.set_num_threads(threads)
    for index, name, count in _models():
        devices.append(_measure(torch.device("cuda", index), name, count, seconds))
    return m.MachineFigures(
        cores=known["cores"],
        memory=known["memory"],
        gpus=[gpu["name"] for gpu in known["gpus"]],
        devices=devices,
    )


def _models() -> list[tuple[int, str, int]]:
    """Return the first GPU of each model, its name, and how many of them there are."""
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return [(names.index(name), name, names.count(name)) for name in dict.fromkeys(names)][
        :MOST_MODELS
    ]


def _measure(device: torch.device, name: str, count: int, seconds: float) -> DeviceRates:
    meter, began = counters.Joules(), time.perf_counter()
    single = product_rate(device, torch.float32, seconds)
    watts = _watts(device, meter, time.perf_counter() - began)
    half = product_rate(device, torch.bfloat16, seconds)
    copies = copy_rate(device, seconds / 2)
    return DeviceRates(name, count, single, half, copies, watts)


def product_rate(device: torch.device, kind: torch.dtype, seconds: float) -> float | None:
    """Return the best GFLOP/s of products of square matrices; others may disturb the rest."""
    largest = LARGEST_ON_CPU if device.type == "cpu" else LARGEST_ON_GPU
    size, best = SMALLEST, 0.0
    try:
        first = torch.rand(size, size, device=device).to(kind)
        _time(lambda: first @ first, device)  # the first time libraries set themselves up
        end = time.perf_counter() + seconds
        while True:
            one = torch.rand(size, size, device=device).to(kind)
            took = _time(lambda one=one: one @ one, device)  # type: ignore[misc]
            best = max(best, 2 * size**3 / took / GIGA)
            if time.perf_counter() >= end:
                return best
            if took < LONG_ENOUGH and size < largest:
                size *= 2
    except RuntimeError:
        return best or None  # ``None`` if the device does not have this type


def copy_rate(device: torch.device, seconds: float) -> float | None:
    """Return the GB/s that a copy reads and writes."""
    size, best = COPIED[device.type], 0.0
    try:
        source = torch.ones(size // 4, device=device)
        target = torch.zeros_like(source)
        end = time.perf_counter() + seconds
        while True:
            took = _time(lambda: target.copy_(source), device)
            best = max(best, 2 * size / took / GIGA)
            if time.perf_counter() >= end:
                return best
    except RuntimeError:
        return None


def _time(work: Callable[[], object], device: torch.device) -> float:
    _finish(device)
    began = time.perf_counter()
    work()
    _finish(device)
    return max(time.perf_counter() - began, 1e-9)


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _watts(device: torch.device, meter: counters.Joules, seconds: float) -> float | None:
    """Return the watts under load, if the device counts them."""
    if device.type == "cpu":
        joules = meter.read()
        return None if joules is None else joules / seconds
    found = gpus.gpu_facts()
    index = device.index or 0
    watts = found[index]["watts"] if index < len(found) else None
    return None if watts is None else float(watts)
