"""The tables of a probe: links, collectives against their formulas, and machines: what they
have, and how fast they compute."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rich.table import Table
from rich.text import Text

from phalanx.cli.show.check_words import plain_table, short
from phalanx.core import words
from phalanx.pool.measured import CollectiveFigures, LinkFigures, Probe, slowest

WIDTH = 80
FAR_OFF = 2.0
ALL_REDUCE = "all_reduce."
TITLES = ("cores", "memory", "device", "float32", "bfloat16", "copies", "watts")
HEADING = "machines: GFLOP/s of matrix products, GB/s of copies in memory"
DEVICE_WIDTH = 20


def links_table(probe: Probe) -> tuple[str, Table]:
    """A title and a table: of bandwidth and latency, of bandwidth, or a line for each machine."""
    for latencies in (True, False):
        rows = _matrix(probe, latencies)
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        if sum(widths) + 2 * (len(widths) - 1) <= WIDTH:
            title = "links from row to column: Mbit/s"
            title += " and one-way latency" if latencies else f"; {_latency_words(probe)}"
            (first, *titles), *body = rows
            table = plain_table(first, *titles)
            for row in body:
                table.add_row(*row)
            return title, table
    return f"links of each machine; {_latency_words(probe)}", _list(probe)


def _matrix(probe: Probe, latencies: bool) -> list[list[str]]:
    rows = [["from / to", *map(short, probe.machines)]]
    for source in probe.machines:
        cells = [
            "·" if source == target else _link_words(probe.link(source, target), latencies)
            for target in probe.machines
        ]
        rows.append([short(source), *cells])
    return rows


def _latency_words(probe: Probe) -> str:
    found = sorted(link.latency for link in probe.links)
    middle, longest = found[len(found) // 2], found[-1]
    return f"one-way latency {time_words(middle)}, at most {time_words(longest)}"


def _link_words(link: LinkFigures | None, latencies: bool) -> str:
    if link is None:
        return "?"
    rate = rate_words(link.bandwidth)
    return f"{rate}  {time_words(link.latency)}" if latencies else rate


def _list(probe: Probe) -> Table:
    """A line for each machine: too many of them for a matrix."""
    table = plain_table("machine", "latency", "median Mbit/s", "slowest Mbit/s", "towards")
    for name in probe.machines:
        found = sorted((k for k in probe.links if k.source == name), key=lambda k: k.bandwidth)
        if not found:
            table.add_row(short(name), "?", "?", "?", "")
            continue
        middle = sorted(k.latency for k in found)[len(found) // 2]
        rates = [rate_words(found[i].bandwidth) for i in (len(found) // 2, 0)]
        table.add_row(short(name), time_words(middle), *rates, short(found[0].target))
    return table


def collectives_table(probe: Probe) -> Table:
    """Each cell: median time, and how many times what the formula says."""
    sizes = sorted({figures.bytes for figures in probe.collectives})
    table = plain_table("", *(words.size(size, binary=True) for size in sizes), gap=1)
    by_name = {
        name: {figures.bytes: figures for figures in group}
        for name, group in groupby(sorted(probe.collectives, key=lambda c: c.name), _name_of)
    }
    fastest = _fastest(probe.collectives)
    order = list(dict.fromkeys(figures.name for figures in probe.collectives))
    headed = False
    for name in order:
        if name.startswith(ALL_REDUCE) and not headed:
            table.add_row("all-reduce")
            headed = True
        cells = []
        for size in sizes:
            figures = by_name[name].get(size)
            cells.append(_figures_words(figures) if figures else Text("–", style="dim"))
        table.add_row(_collective_words(name), *cells)
    if fastest:
        names = [fastest.get(size, "").removeprefix(ALL_REDUCE) for size in sizes]
        table.add_row("  fastest", *names)
        table.add_row("  chosen", *_chosen(probe, sizes), style="dim")
    return table


def _chosen(probe: Probe, sizes: Sequence[int]) -> list[str]:
    """What Phalanx takes by itself, given the measured links."""
    from phalanx.policies.collective_choice import choose

    latency, bandwidth = slowest(probe, probe.participants) or (None, None)
    return [choose(None, len(probe.participants), size, latency, bandwidth) for size in sizes]


def _figures_words(figures: CollectiveFigures) -> Text:
    ratio = figures.ratio
    text = Text(time_words(figures.measured))
    far = ratio > FAR_OFF or ratio < 1 / FAR_OFF
    return text.append(f" ×{ratio_words(ratio)}", style="yellow" if far else "dim")


def _fastest(collectives: Sequence[CollectiveFigures]) -> dict[int, str]:
    """The all-reduce that took the least time, by size."""
    best: dict[int, CollectiveFigures] = {}
    for figures in collectives:
        if figures.name.startswith(ALL_REDUCE):
            now = best.get(figures.bytes)
            if now is None or figures.measured < now.measured:
                best[figures.bytes] = figures
    return {size: figures.name for size, figures in best.items()}


def notes(probe: Probe) -> list[str]:
    """What helps to read the ratios."""
    from phalanx.policies.collective_cost import MESSAGE_SECONDS

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
    """What there was no time for: pairs, then collectives by size."""
    pairs = [item.what for item in probe.left_out if item.bytes is None]
    lines = [f"pairs {', '.join(pairs)}"] if pairs else []
    missing: dict[int, list[str]] = {}
    for item in probe.left_out:
        if item.bytes is not None:
            missing.setdefault(item.bytes, []).append(item.what)
    timed = {figures.bytes for figures in probe.collectives}
    for size in sorted(missing.keys() & timed):
        names = [name.replace("_", "-").replace(".", " ") for name in missing[size]]
        lines.append(f"{words.size(size, binary=True)}: {', '.join(names)}")
    if wholly := sorted(missing.keys() - timed):
        lines.append(
            f"{', '.join(words.size(size, binary=True) for size in wholly)}: all collectives"
        )
    return lines


def _name_of(figures: CollectiveFigures) -> str:
    return figures.name


def _collective_words(name: str) -> str:
    if name.startswith(ALL_REDUCE):
        return f"  {name.removeprefix(ALL_REDUCE)}"
    return name.replace("_", "-")


def rate_words(bandwidth: float) -> str:
    """Bytes per second as Mbit/s, three digits."""
    rate = bandwidth * 8 / 1e6
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def time_words(seconds: float) -> str:
    """``61 µs``, ``1.23 ms``, ``2.5 s``."""
    for unit, size in (("µs", 1e-6), ("ms", 1e-3)):
        if seconds < 999.5 * size:
            return f"{three(seconds / size)} {unit}"
    return f"{three(seconds)} s"


def three(value: float) -> str:
    """Three digits, without an exponent."""
    return f"{value:.0f}" if value >= 99.95 else f"{value:.3g}"


def ratio_words(ratio: float) -> str:
    return f"{ratio:.0f}" if ratio >= 9.95 else f"{ratio:.1f}"


def rates_table(probe: Probe) -> Table:
    """A line for each device; watts only where something counts them."""
    counted = any(d.watts is not None for each in probe.rates for d in each.devices)
    titles = TITLES if counted else TITLES[:-1]
    table = plain_table("machine", *titles, left=("device",))
    for each in probe.rates:
        first = [short(each.machine), str(each.cores), words.size(each.memory)]
        for device in each.devices:
            name = device.name if device.count == 1 else f"{device.count} × {device.name}"
            figures = (device.float32, device.bfloat16, device.memory, device.watts)
            cells = ("?" if each is None else _figure(each) for each in figures)
            table.add_row(*first, *[words.short(name, DEVICE_WIDTH), *cells][: len(titles) - 2])
            first = ["", "", ""]
    return table


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 99.5 else f"{value:.3g}"
