"""The probe that is kept beside a blueprint, and what planners read from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from phalanx.core.errors import InputError
from phalanx.pool.measured import (
    CollectiveFigures,
    LeftOut,
    LinkFigures,
    Probe,
    Trouble,
    link_rates,
    path_beside,
    read_probe,
    slowest,
    write_probe,
)


def made(bandwidths: dict[tuple[str, str], float], latency: float = 1e-4) -> Probe:
    """Links with these bandwidths, the same in both directions."""
    links = [
        LinkFigures(*ends, latency, rate)
        for (one, other), rate in bandwidths.items()
        for ends in ((one, other), (other, one))
    ]
    names = sorted({name for pair in bandwidths for name in pair})
    return Probe("2026-01-02T03:04:05+00:00", 1.0, 2.0, names, links)


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644])
def test_what_is_kept_is_what_is_read(tmp_path: Path, mode: int) -> None:
    blueprint = tmp_path / "pool.yaml"
    blueprint.write_text("machines: {}")
    blueprint.chmod(mode)
    probe = Probe(
        "2026-01-02T03:04:05+00:00", 1.5, 30.0, ["a", "b"],
        [LinkFigures("a", "b", 3e-5, 1.25e8)],
        [CollectiveFigures("broadcast", 64, 2e-4, 1e-4, 7)],
        ["a", "b"], 2e-5, [LeftOut("reduce", 64), LeftOut("a – c")],
        [Trouble(["c"], "c is away", "Look.")], True,
    )  # fmt: skip
    path = write_probe(probe, blueprint)
    assert path == tmp_path / "pool.probe.json" == path_beside(blueprint)
    assert path.stat().st_mode & 0o777 == mode
    assert read_probe(blueprint) == probe
    assert sorted(file.name for file in tmp_path.iterdir()) == ["pool.probe.json", "pool.yaml"]
    assert probe.collectives[0].ratio == pytest.approx(2.0)


def test_none_kept_or_a_broken_one(tmp_path: Path) -> None:
    blueprint = tmp_path / "pool.yaml"
    assert read_probe(blueprint) is None
    for text in ("{", '{"links": 1}', "\x00"):
        path_beside(blueprint).write_text(text)
        with pytest.raises(InputError, match=r"pool\.probe\.json: is damaged"):
            read_probe(blueprint)


def test_a_link_has_a_direction() -> None:
    probe = Probe(
        "2026-01-02T03:04:05+00:00", 1.0, 2.0, ["a", "b"],
        [LinkFigures("a", "b", 1e-4, 2e6), LinkFigures("b", "a", 3e-4, 1e6)],
    )  # fmt: skip
    there, back = probe.link("a", "b"), probe.link("b", "a")
    assert there and back
    assert (there.bandwidth, back.bandwidth) == (2e6, 1e6)
    assert probe.link("a", "c") is None
    assert slowest(probe, ["a", "b"]) == (3e-4, 1e6)


def test_the_slowest_is_known_only_if_every_pair_is() -> None:
    probe = made({("a", "b"): 100.0, ("b", "c"): 10.0})
    assert slowest(probe, ["a", "b"]) == (1e-4, 100.0)
    assert slowest(probe, ["a", "b", "c"]) is None
    assert slowest(probe, ["a"]) is None


def test_a_machine_has_the_rate_of_its_best_link() -> None:
    """Each has a slow one to a slow machine: that is no property of its own."""
    probe = made({("a", "b"): 5e7, ("a", "c"): 1e7, ("b", "c"): 1.1e7})
    assert link_rates(probe) == {"a": 4e8, "b": 4e8, "c": 8.8e7}
