"""The tables of a probe: links, collectives beside their predictions, and machines with their
hardware and speed."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from phalanx.cli.show.check_words import plain_table, short
from phalanx.core import words
from phalanx.policies.collective_choice import choose
from phalanx.policies.collective_cost import MESSAGE_SECONDS
from phalanx.pool.measured import CollectiveFigures, LinkFigures, Probe, slowest

WIDTH = 80
FAR_OFF = 2.0
ALL_REDUCE = "all_reduce."
TITLES = ("cores", "memory", "device", "float32", "bfloat16", "copies", "watts")
HEADING = "machines: GFLOP/s of matrix products, GB/s of copies in memory"
DEVICE_WIDTH = 20


def links_table(probe: Probe) -> tuple[str, Table]:
    """Return a title and a table of every pair, or of every machine if that is too wide."""
    rows = [["from / to", *map(short, probe.machines)]]
    for source in probe.machines:
        cells = [
            "·" if source == target else _link_words(probe.link(source, target))
            for target in probe.machines
        ]
        rows.append([short(source), *cells])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    if sum(widths) + 2 * (len(widths) - 1) > WIDTH:
        return "links of each machine: one-way latency and Mbit/s", _list(probe)
    table = plain_table(*rows[0])
    for row in rows[1:]:
        table.add_row(*row)
    return "links from row to column: Mbit/s and one-way latency", table


def _link_words(link: LinkFigures | None) -> str:
    return "?" if link is None else f"{three(link.bandwidth * 8 / 1e6)}  {time_words(link.latency)}"


def _list(probe: Probe) -> Table:
    """Return a table with a line for each machine, if there are too many for a matrix."""
    table = plain_table("machine", "latency", "median Mbit/s", "slowest Mbit/s", "towards")
    for name in probe.machines:
        found = sorted((k for k in probe.links if k.source == name), key=lambda k: k.bandwidth)
        if not found:
            table.add_row(short(name), "?", "?", "?", "")
            continue
        middle = sorted(k.latency for k in found)[len(found) // 2]
        rates = [three(found[i].bandwidth * 8 / 1e6) for i in (len(found) // 2, 0)]
        table.add_row(short(name), time_words(middle), *rates, short(found[0].target))
    return table


def collectives_table(probe: Probe) -> Table:
    """Return a table whose cells give the median time, and its ratio to the predicted one."""
    found = {(figures.name, figures.bytes): figures for figures in probe.collectives}
    names, sizes = dict.fromkeys(name for name, _ in found), sorted({size for _, size in found})
    sums = [name for name in names if name.startswith(ALL_REDUCE)]
    table = plain_table("", *(words.size(size, binary=True) for size in sizes), gap=1)
    for name in names:
        table.add_row(
            name.removeprefix(ALL_REDUCE), *(_cell(found.get((name, size))) for size in sizes)
        )
    if sums:
        table.add_row("fastest", *(_fastest(found, sums, size) for size in sizes))
        table.add_row("chosen", *_chosen(probe, sizes), style="dim")
    return table


def _fastest(
    found: dict[tuple[str, int], CollectiveFigures], names: Sequence[str], size: int
) -> str:
    taken = {found[name, size].measured: name for name in names if (name, size) in found}
    return taken[min(taken)].removeprefix(ALL_REDUCE) if taken else ""


def _chosen(probe: Probe, sizes: Sequence[int]) -> list[str]:
    """Return what Phalanx would choose for each size, given the measured links."""
    latency, bandwidth = slowest(probe, probe.participants) or (None, None)
    return [choose(None, len(probe.participants), size, latency, bandwidth) for size in sizes]


def _cell(figures: CollectiveFigures | None) -> Text:
    if figures is None:
        return Text("–", style="dim")
    ratio = figures.ratio
    shown = f"{ratio:.0f}" if ratio >= 9.95 else f"{ratio:.1f}"
    far = ratio > FAR_OFF or ratio < 1 / FAR_OFF
    return Text(time_words(figures.measured)).append(f" ×{shown}", "yellow" if far else "dim")


def notes(probe: Probe) -> list[str]:
    """Return lines that explain the ratios."""
    lines = []
    if probe.message_seconds is not None:
        lines.append(
            f"handling a small message takes {time_words(probe.message_seconds)}; the "
            f"predictions assume at most {time_words(MESSAGE_SECONDS)}"
        )
    if probe.emulated:
        lines.append("emulated machines share one host's cores, which slows small messages")
    return lines


def left_out_title(probe: Probe) -> str:
    lost = {name for trouble in probe.trouble for name in trouble.machines}
    if lost & set(probe.participants):
        return "not measured, because a machine was lost meanwhile:"
    return "not measured, because the time ran out (increase --seconds):"


def left_out_words(probe: Probe) -> list[str]:
    """Return lines of what was not measured: pairs, then collectives by size."""
    missing: dict[int | None, list[str]] = {}
    for item in probe.left_out:
        what = item.what if item.bytes is None else item.what.replace("_", "-").replace(".", " ")
        missing.setdefault(item.bytes, []).append(what)
    pairs = missing.pop(None, [])
    lines = [f"pairs {', '.join(pairs)}"] if pairs else []
    sizes = [(words.size(size, binary=True), names) for size, names in missing.items()]
    return lines + [f"{size}: {', '.join(names)}" for size, names in sizes]


def time_words(seconds: float) -> str:
    """Return a time such as ``61 µs``, ``1.23 ms`` or ``2.5 s``."""
    for unit, size in (("µs", 1e-6), ("ms", 1e-3)):
        if seconds < 999.5 * size:
            return f"{three(seconds / size)} {unit}"
    return f"{three(seconds)} s"


def three(value: float) -> str:
    """Format a number with three digits or more, without an exponent."""
    return f"{value:,.0f}" if value >= 99.95 else f"{value:.3g}"


def rates_table(probe: Probe) -> Table:
    """Return a table with a line for each device; watts only if some device counts them."""
    counted = any(d.watts is not None for each in probe.rates for d in each.devices)
    titles = TITLES if counted else TITLES[:-1]
    table = plain_table("machine", *titles, left=("device",))
    for each in probe.rates:
        first = [short(each.machine), str(each.cores), words.size(each.memory)]
        for device in each.devices:
            name = device.name if device.count == 1 else f"{device.count} × {device.name}"
            figures = (device.float32, device.bfloat16, device.memory, device.watts)
            cells = ("?" if each is None else three(each) for each in figures)
            table.add_row(*first, *[words.short(name, DEVICE_WIDTH), *cells][: len(titles) - 2])
            first = ["", "", ""]
    return table
