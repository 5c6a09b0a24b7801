"""This machine: its cores, quota and GPUs, from files made for the test."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from phalanx.pool.facts import (
    Facts,
    allowed_cpus,
    count_gpus,
    cpu_quota,
    measure,
    order_by_core,
)
from phalanx.pool.here import on_this_machine, this_machine
from phalanx.pool.machine import Machine

FOUR_CORES = Facts(cores=4, cpu_ids=(0, 2, 1, 3), memory=2**30, gpus=2, usable_gpus=2)


def test_the_pool_without_a_blueprint() -> None:
    pool = this_machine()
    (here,) = pool.machines
    assert (here.name, here.host) == ("here", "here")
    assert set(here.cpu_ids) == os.sched_getaffinity(0)
    assert here.cores is not None and 1 <= here.cores <= len(here.cpu_ids)


def test_affinity_is_respected() -> None:
    before = os.sched_getaffinity(0)
    one = min(before)
    os.sched_setaffinity(0, {one})
    try:
        assert allowed_cpus() == (one,)
        assert measure().cores == 1
    finally:
        os.sched_setaffinity(0, before)


def test_siblings_of_a_core_are_neighbours(tmp_path: Path) -> None:
    for cpu, (package, core) in enumerate([(0, 0), (0, 1), (1, 0), (0, 0), (0, 1), (1, 0)]):
        folder = tmp_path / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "physical_package_id").write_text(f"{package}\n")
        (folder / "core_id").write_text(f"{core}\n")
    assert order_by_core({0, 1, 2, 3, 4, 5}, tmp_path) == (0, 3, 1, 4, 2, 5)
    assert order_by_core({5, 1}, tmp_path / "unknown") == (1, 5)


def made_cgroups(folder: Path, ours: str, files: dict[str, str]) -> tuple[Path, Path]:
    listing = folder / "cgroup"
    listing.write_text(ours)
    mount = folder / "mount"
    mount.mkdir()
    for name, content in files.items():
        (mount / name).parent.mkdir(parents=True, exist_ok=True)
        (mount / name).write_text(content)
    return listing, mount


@pytest.mark.parametrize(
    ("ours", "files", "quota"),
    [
        ("0::/a/b\n", {"a/b/cpu.max": "150000 100000\n"}, 1.5),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "200000 100000\n"}, 2.0),
        ("0::/a/b\n", {"a/b/cpu.max": "400000 100000\n", "a/cpu.max": "200000 100000\n"}, 2.0),
        ("0::/a\n", {"a/cpu.max": "max 100000\n"}, None),
        ("0::/gone\n", {"cpu.max": "300000 100000\n"}, 3.0),
        ("0::/\n", {"cpu.max": "rubbish"}, None),
        (
            "3:cpuset:/\n2:cpu,cpuacct:/x\n",
            {"cpu/x/cpu.cfs_quota_us": "50000\n", "cpu/x/cpu.cfs_period_us": "100000\n"},
            0.5,
        ),
        (
            "1:cpu:/\n",
            {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"},
            None,
        ),
        ("garbage\n", {}, None),
    ],
)
def test_quota(tmp_path: Path, ours: str, files: dict[str, str], quota: float | None) -> None:
    assert cpu_quota(*made_cgroups(tmp_path, ours, files)) == quota


def test_no_quota_without_control_groups(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path / "none", tmp_path) is None


@pytest.mark.parametrize(("quota", "cores"), [(0.5, 1), (2.9, 2), (64.0, 4), (None, 4)])
def test_a_quota_limits_the_cores(
    monkeypatch: pytest.MonkeyPatch, quota: float | None, cores: int
) -> None:
    monkeypatch.setattr("phalanx.pool.facts.cpu_quota", lambda: quota)
    monkeypatch.setattr("phalanx.pool.facts.allowed_cpus", lambda: (4, 5, 6, 7))
    facts = measure()
    assert (facts.cores, facts.cpu_ids) == (cores, (4, 5, 6, 7))


@pytest.mark.parametrize(
    ("visible", "counted"),
    [(None, 3), ("0,2", 2), ("", 0), ("-1", 0), ("0,-1,1", 1), ("0,1,2,3,4", 3)],
)
def test_gpus_of_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, visible: str | None, counted: int
) -> None:
    for address in ("01", "02", "03"):
        (tmp_path / f"0000:{address}:00.0").mkdir()
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert count_gpus(tmp_path, tmp_path) == counted


def test_gpus_of_a_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for address in ("01", "02", "03"):
        (tmp_path / "driver" / f"0000:{address}:00.0").mkdir(parents=True)
    for node in ("nvidia1", "nvidia2", "nvidiactl", "nvidia-uvm"):
        (tmp_path / node).touch()
    assert count_gpus(tmp_path / "driver", tmp_path) == 2


def made_tool(folder: Path, script: str) -> None:
    tool = folder / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)


@pytest.mark.parametrize(
    ("script", "counted"),
    [
        ("echo 'GPU 0: H200 (UUID: x)'; echo 'GPU 1: H200 (UUID: y)'", 2),
        ("echo 'No devices were found'", 0),
        ("echo 'GPU 0: lies'; exit 9", 0),
        (None, 0),
    ],
)
def test_gpus_of_the_tool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, counted: int
) -> None:
    if script:
        made_tool(tmp_path, script)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert count_gpus(tmp_path / "no-driver", tmp_path) == counted


def here(**fields: object) -> Machine:
    return Machine.model_validate({"name": "me", "host": "here", **fields})


def test_what_is_unsaid_is_measured() -> None:
    machine, warnings = on_this_machine(here(), FOUR_CORES)
    assert (machine.cores, machine.gpus, machine.memory) == (4, 2, 2**30)
    assert machine.cpu_ids == (0, 2, 1, 3)
    assert warnings == []


def test_less_than_there_is() -> None:
    machine, warnings = on_this_machine(here(cores=3, gpus=0, memory="1GB"), FOUR_CORES)
    assert (machine.cores, machine.gpus, machine.memory) == (3, 0, 10**9)
    assert machine.cpu_ids == (0, 2, 1)
    assert warnings == []


def test_more_than_there_is() -> None:
    machine, warnings = on_this_machine(here(cores=9, gpus=3), FOUR_CORES)
    assert (machine.cores, machine.gpus) == (4, 2)
    assert warnings == [
        "machine 'me': cores is 9, but 4 can be used here; taking 4",
        "machine 'me': gpus is 3, but 2 can be used here; taking 2",
    ]


def test_an_emulated_machine_may_claim_anything() -> None:
    machine, warnings = on_this_machine(here(cores=9, gpus=3, emulated=True), FOUR_CORES)
    assert (machine.cores, machine.gpus, machine.real_gpus) == (9, 3, 2)
    assert warnings == []


def test_gpus_that_torch_cannot_use() -> None:
    facts = Facts(cores=1, cpu_ids=(0,), memory=1, gpus=2, usable_gpus=0)
    machine, warnings = on_this_machine(here(), facts)
    assert machine.gpus == 0
    assert warnings == ["2 GPUs are here, but the installed torch is a CPU build"]


def test_under_a_quota_nobody_is_held_to_a_core() -> None:
    machine, _ = on_this_machine(here(), Facts(1, (0, 1, 2, 3), 8 * 10**9, 0, 0))
    assert (machine.cores, machine.cpu_ids) == (1, ())
