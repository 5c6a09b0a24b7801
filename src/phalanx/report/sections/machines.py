"""CPU, memory and network of the machines."""

from __future__ import annotations

from phalanx.report import words
from phalanx.report.load import StudyData
from phalanx.report.sections import Grid, Plot, Section

HEAD = ("strategy", "machine", "workers", "CPU mean", "CPU max", "memory mean", "memory max",
        "network mean", "network max")  # fmt: skip


def section(study: StudyData) -> Section | None:
    """Over time, and as figures."""
    if not any(samples for g in study.groups for samples in g.shown.files.samples.values()):
        return None
    from phalanx.report.plots import machine_use

    caption = (
        "The whole machine, other programs included, once a second from the start of the "
        "launch. A CPU that is not full while workers wait is the price of waiting."
    )
    plot = Plot("machines", caption, machine_use(study), wide=True)
    return Section("Machines", 800, plots=(plot,), grids=(Grid(HEAD, _rows(study)),))


def _rows(study: StudyData) -> tuple[tuple[str, ...], ...]:
    rows = []
    for group in study.groups:
        for machine in group.shown.summary.machines:
            use = machine.resources
            rows.append(
                (
                    group.label,
                    machine.name,
                    str(machine.workers),
                    *(_percent(value) for value in (use.cpu_percent.avg, use.cpu_percent.max)),
                    words.size(use.memory_bytes.avg),
                    words.size(use.memory_bytes.max),
                    *(
                        words.UNKNOWN if value is None else f"{words.size(value)}/s"
                        for value in (
                            use.network_bytes_per_second.avg,
                            use.network_bytes_per_second.max,
                        )
                    ),
                )
            )
    return tuple(rows)


def _percent(value: float | None) -> str:
    return words.UNKNOWN if value is None else f"{value:.0f} %"
