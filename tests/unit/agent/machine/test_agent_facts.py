"""What the agent finds and reads: from files like the kernel's, and from this machine."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from phalanx.agent.frames import RequestProblem
from phalanx.agent.machine import (
    control_groups as groups,
)
from phalanx.agent.machine import (
    counters,
    facts,
    gpus,
    reach,
)
from phalanx.pool.machine_facts import MachineFacts

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def folder(root: Path, **files: str) -> str:
    root.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (root / name.replace("__", ".")).write_text(text)
    return str(root)


def test_memory_of_both_versions(tmp_path: Path) -> None:
    new = folder(
        tmp_path / "a",
        memory__max="1000\n",
        memory__current="700\n",
        memory__swap__current="40\n",
        memory__stat="anon 300\nfile 200\ninactive_file 150\npgmajfault 3\npswpin 1\npswpout 2\n",
    )
    assert (groups.limit_of(new), groups.memory_used(new)) == (1000, 550)
    assert groups.memory_figures(new) == {
        "used": 550, "cached": 200, "swap": 40, "swap_bytes": 3 * groups.PAGE, "major_faults": 3,
    }  # fmt: skip
    old = folder(
        tmp_path / "b",
        memory__limit_in_bytes=f"{2**63 - 4096}\n",
        memory__usage_in_bytes="700\n",
        memory__stat="cache 1\ninactive_file 1\nswap 5\npgmajfault 1\n"
        "total_cache 250\ntotal_inactive_file 200\ntotal_swap 30\ntotal_pgmajfault 4\n",
    )
    assert (groups.limit_of(old), groups.memory_used(old)) == (None, 500)
    figures = groups.memory_figures(old)
    assert figures == {"used": 500, "cached": 250, "swap": 30, "major_faults": 4}


def test_processor_time_of_both_versions(tmp_path: Path) -> None:
    new = folder(
        tmp_path / "a",
        cpu__stat="usage_usec 2500000\nuser_usec 2000000\nsystem_usec 500000\n"
        "throttled_usec 1250000\n",
        cpu__pressure="some avg10=1.00 total=1500000\nfull avg10=0 total=9\n",
    )
    assert groups.cpu_seconds(new) == 2.5
    seconds = {"busy": 2.5, "user": 2.0, "system": 0.5, "throttled": 1.25}
    assert groups.cpu_figures(new) == seconds
    assert groups.pressure_seconds(f"{new}/cpu.pressure") == 1.5
    old = folder(
        tmp_path / "b",
        cpuacct__usage="1500000000\n",
        cpuacct__stat=f"user {groups.TICKS}\nsystem {groups.TICKS // 2}\n",
        cpu__stat="nr_periods 9\nthrottled_time 250000000\n",
    )
    seconds = {"busy": 1.5, "user": 1.0, "system": 0.5, "throttled": 0.25}
    assert groups.cpu_figures(old) == seconds
    empty = folder(tmp_path / "c", cpu__stat="nr_periods 0\n")
    assert (groups.cpu_seconds(empty), groups.cpu_figures(empty)) == (None, {})
    assert groups.pressure_seconds(f"{empty}/cpu.stat") is None


def test_kinds_of_the_time_of_some_cores() -> None:
    text = (
        "cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 100 10 20 500 40 1 2 30 5 0\n"
        "cpu1 1 1 1 1 1 1 1 1 0 0\ncpu2 200 0 10 1 0 0 0 0 0 0\nintr 5 cpu0\n"
    )
    found = counters.kinds_of_time(text, {"cpu0", "cpu2"})
    ticks = {kind: round(seconds * groups.TICKS) for kind, seconds in found.items()}
    assert ticks == {"user": 310, "system": 33, "wait": 40, "steal": 30, "busy": 373}


def test_siblings_of_a_core_are_neighbours(tmp_path: Path) -> None:
    for cpu, (package, core) in enumerate([(0, 0), (0, 1), (1, 0), (0, 0), (0, 1), (1, 0)]):
        folder = tmp_path / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "physical_package_id").write_text(f"{package}\n")
        (folder / "core_id").write_text(f"{core}\n")
    assert facts.order_by_core({0, 1, 2, 3, 4, 5}, str(tmp_path)) == [0, 3, 1, 4, 2, 5]
    assert facts.order_by_core({5, 1}, str(tmp_path / "unknown")) == [1, 5]


def made_cgroups(folder: Path, ours: str, files: dict[str, str]) -> tuple[str, str]:
    listing = folder / "cgroup"
    listing.write_text(ours)
    mount = folder / "mount"
    mount.mkdir()
    for name, content in files.items():
        (mount / name).parent.mkdir(parents=True, exist_ok=True)
        (mount / name).write_text(content)
    return str(listing), str(mount)


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
    assert groups.cpu_quota(*made_cgroups(tmp_path, ours, files)) == quota


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
    assert gpus.count_gpus(str(tmp_path), str(tmp_path)) == counted


def test_gpus_of_a_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for address in ("01", "02", "03"):
        (tmp_path / "driver" / f"0000:{address}:00.0").mkdir(parents=True)
    for node in ("nvidia1", "nvidia2", "nvidiactl", "nvidia-uvm"):
        (tmp_path / node).touch()
    assert gpus.count_gpus(str(tmp_path / "driver"), str(tmp_path)) == 2


def made_tool(folder: Path, script: str) -> None:
    tool = folder / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)


@pytest.mark.parametrize(
    ("script", "counted"),
    [
        ("echo 'H200, 143771, 77.1'; echo 'H200, 143771, 78.0'", 2),
        ("echo 'No devices were found'", 0),
        ("echo 'lies, 1, 1'; exit 9", 0),
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
    assert gpus.count_gpus(str(tmp_path / "no-driver"), str(tmp_path)) == counted


def test_gpus_and_what_they_do_not_tell() -> None:
    text = "NVIDIA A, 81920, 55.5\nNVIDIA B, [N/A], [N/A]\nfailed\n"
    first, second = gpus.facts_of(text)
    assert first == {"name": "NVIDIA A", "memory": 80 * 2**30, "watts": 55.5}
    assert (second["memory"], second["watts"]) == (None, None)


def test_readings_of_several_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus.shutil, "which", lambda name: None)
    readings = gpus.GpuReadings()
    assert set(readings.figures().values()) == {None}
    for line in ("0, 50, 100, 60.0", "1, 100, 200, [N/A]", "0, 70, 100, 80.0", "nonsense"):
        readings.take(line)
    assert readings.figures() == {
        "gpu_percent": 85.0,
        "gpu_memory_bytes": 300 * 2**20,
        "gpu_watts": 80.0,
    }


def test_energy_counters_that_begin_anew(tmp_path: Path) -> None:
    zone = tmp_path / "intel-rapl:0"
    folder(zone, name="package-0\n", energy_uj="900000\n", max_energy_range_uj="1000000\n")
    folder(tmp_path / "intel-rapl:0:0", name="core\n", energy_uj="5\n")
    meter = counters.Joules(str(tmp_path))
    (zone / "energy_uj").write_text("950000\n")
    assert meter.read() == 0.05
    (zone / "energy_uj").write_text("50000\n")
    assert meter.read() == pytest.approx(0.15)
    assert counters.Joules(str(tmp_path / "none")).read() is None


def agent(**fields: Any) -> Any:
    return SimpleNamespace(folder=Path.home() / ".cache" / "phalanx", **fields)


@linux
def test_facts_of_this_machine() -> None:
    found = msgspec.convert(facts.machine_facts(Path.home()), MachineFacts)
    assert found.hostname == socket.gethostname()
    assert 1 <= found.cores <= len(found.cpu_ids) == len(os.sched_getaffinity(0))
    assert found.memory
    assert str(Path("/proc/self/ns/net").stat().st_ino) in found.machine_id
    assert found.disk_free and found.disk_free > 0


@linux
def test_who_knocks_is_shown_the_token() -> None:
    door = reach.listen(agent(), {"address": "127.0.0.1"}, b"")
    answer = reach.reach(agent(), {"address": "127.0.0.1", "port": door["port"]}, b"")
    assert answer == {"ok": True, "why": "", "token": door["token"]}
    closed = socket.socket()
    closed.bind(("127.0.0.1", 0))
    refused = reach.reach(agent(), {"address": "127.0.0.1", "port": closed.getsockname()[1]}, b"")
    closed.close()
    assert (refused["ok"], refused["why"]) == (False, "connection refused")


def test_an_address_of_another_machine_cannot_be_listened_on() -> None:
    with pytest.raises(RequestProblem, match=r"cannot listen on 192\.0\.2\.77"):
        reach.listen(agent(), {"address": "192.0.2.77"}, b"")


@linux
def test_processor_time_of_workers_and_their_children() -> None:
    """One group of processes: this test's own child, which has a child of its own."""
    import subprocess

    burn = "import time\nt = time.process_time()\nwhile time.process_time() - t < 0.3: pass\n"
    outer = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {burn!r}])\ninput()\n"
    child = subprocess.Popen(
        [sys.executable, "-c", outer], stdin=subprocess.PIPE, start_new_session=True
    )
    try:
        table, families = counters.Processes(), counters.Families()
        deadline = counters.time.monotonic() + 20
        seconds = 0.0
        while seconds < 0.28 and counters.time.monotonic() < deadline:
            seconds, _, memory = table.use(families.of([child.pid]))
            counters.time.sleep(0.05)
        assert seconds >= 0.28, "the time of a child that has ended is its parent's"
        assert memory > 0
    finally:
        child.kill()
        child.wait()
