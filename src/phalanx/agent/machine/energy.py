"""Energy as counted by the processors themselves (RAPL), where this user may read it."""

from __future__ import annotations

from pathlib import Path

from phalanx.agent.machine.control_groups import read_number, read_text

POWERCAP = "/sys/class/powercap"


def zones(root: str = POWERCAP) -> list[str]:
    """The folders of all packages and of the memory, none of which contains another."""
    try:
        names = sorted(entry.name for entry in Path(root).iterdir())
    except OSError:
        return []
    found = []
    for name in names:
        label = read_text(f"{root}/{name}/name").strip()
        if label.startswith("package") or label == "dram":
            found.append(f"{root}/{name}")
    return [zone for zone in found if read_number(f"{zone}/energy_uj") is not None]


class Joules:
    """Joules used since this object was made; a counter that wraps around goes on."""

    def __init__(self, root: str = POWERCAP) -> None:
        self._zones = zones(root)
        self._last: dict[str, int] = {}
        self._total = 0
        self.read()

    def read(self) -> float | None:
        """The joules so far; ``None`` where nothing counts them."""
        for zone in self._zones:
            now = read_number(f"{zone}/energy_uj")
            if now is None:
                continue
            passed = now - self._last.get(zone, now)
            if passed < 0:
                passed += read_number(f"{zone}/max_energy_range_uj") or now
            self._total += max(0, passed)
            self._last[zone] = now
        return self._total / 1e6 if self._zones else None
