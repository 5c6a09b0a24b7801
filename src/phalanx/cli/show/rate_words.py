"""The table of machines in a probe: what they have, and how fast they compute."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phalanx.cli.show.check_words import short
from phalanx.core import words

if TYPE_CHECKING:
    from rich.table import Table

    from phalanx.pool.measured import DeviceRates, Probe

TITLES = ("cores", "memory", "device", "float32", "bfloat16", "copies", "watts")
HEADING = "machines: GFLOP/s of matrix products, GB/s of copies in memory"
DEVICE_WIDTH = 20


def rates_table(probe: Probe) -> Table:
    """A line for each device; watts only where something counts them."""
    from rich.table import Table

    counted = any(d.watts is not None for each in probe.rates for d in each.devices)
    titles = TITLES if counted else TITLES[:-1]
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column("machine", no_wrap=True)
    for title in titles:
        table.add_column(title, justify="left" if title == "device" else "right", no_wrap=True)
    for each in probe.rates:
        first = [short(each.machine), str(each.cores), words.size(each.memory)]
        for device in each.devices:
            table.add_row(*first, *_cells(device)[: len(titles) - 2])
            first = ["", "", ""]
    return table


def _cells(device: DeviceRates) -> list[str]:
    name = device.name if device.count == 1 else f"{device.count} × {device.name}"
    name = name if len(name) <= DEVICE_WIDTH else f"{name[: DEVICE_WIDTH - 1]}…"
    figures = (device.float32, device.bfloat16, device.memory, device.watts)
    return [name, *("?" if each is None else _figure(each) for each in figures)]


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 99.5 else f"{value:.3g}"
