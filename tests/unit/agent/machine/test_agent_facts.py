"""What the agent finds and reads: from files like the kernel's, and from this machine."""

from __future__ import annotations

import os
import socket
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from phalanx.agent.frames import Problem
from phalanx.agent.machine import (
    control_groups as groups,
)
from phalanx.agent.machine import (
    counters,
    energy,
    facts,
    gpus,
    reach,
    sampling,
)
from phalanx.observe.machines.agent_samples import sample_of
from phalanx.pool.machine_facts import facts_of

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def folder(root: Path, **files: str) -> str:
    root.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (root / name.replace("__", ".")).write_text(text)
    return str(root)


def test_quotas_of_both_versions(tmp_path: Path) -> None:
    assert groups.quota_of(folder(tmp_path / "a", cpu__max="150000 100000\n")) == 1.5
    assert groups.quota_of(folder(tmp_path / "b", cpu__max="max 100000\n")) is None
    old = folder(tmp_path / "c", cpu__cfs_quota_us="50000\n", cpu__cfs_period_us="100000\n")
    assert groups.quota_of(old) == 0.5
    none = folder(tmp_path / "d", cpu__cfs_quota_us="-1\n", cpu__cfs_period_us="100000\n")
    assert groups.quota_of(none) is None
    assert groups.quota_of(str(tmp_path / "nowhere")) is None


def test_memory_of_both_versions(tmp_path: Path) -> None:
    new = folder(
        tmp_path / "a",
        memory__max="1000\n",
        memory__current="700\n",
        memory__stat="anon 300\ninactive_file 150\n",
    )
    assert (groups.limit_of(new), groups.memory_used(new)) == (1000, 550)
    old = folder(
        tmp_path / "b",
        memory__limit_in_bytes=f"{2**63 - 4096}\n",
        memory__usage_in_bytes="700\n",
        memory__stat="inactive_file 1\ntotal_inactive_file 200\n",
    )
    assert (groups.limit_of(old), groups.memory_used(old)) == (None, 500)


def test_processor_time_of_both_versions(tmp_path: Path) -> None:
    assert groups.cpu_seconds(folder(tmp_path / "a", cpu__stat="usage_usec 2500000\nx 1\n")) == 2.5
    assert groups.cpu_seconds(folder(tmp_path / "b", cpuacct__usage="1500000000\n")) == 1.5
    assert groups.cpu_seconds(folder(tmp_path / "c", cpu__stat="nr_periods 0\n")) is None


def test_a_path_of_the_host_leads_to_what_is_mounted(tmp_path: Path) -> None:
    (tmp_path / "cpu" / "a").mkdir(parents=True)
    found = groups._upwards(str(tmp_path / "cpu"), "/a/not-mounted")
    assert [(Path(g.folder).name, g.is_root) for g in found] == [("a", False), ("cpu", True)]


def test_gpus_and_what_they_do_not_tell() -> None:
    text = "NVIDIA A, 81920, GPU-1, 55.5\nNVIDIA B, [N/A], GPU-2, [N/A]\nfailed\n"
    first, second = gpus.facts_of(text)
    assert first == {"name": "NVIDIA A", "memory": 80 * 2**30, "uuid": "GPU-1", "watts": 55.5}
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
    meter = energy.Joules(str(tmp_path))
    (zone / "energy_uj").write_text("950000\n")
    assert meter.read() == 0.05
    (zone / "energy_uj").write_text("50000\n")
    assert meter.read() == pytest.approx(0.15)
    assert energy.Joules(str(tmp_path / "none")).read() is None


def test_busy_time_of_some_cores() -> None:
    text = "cpu 1 1 1 1 1 1 1 1\ncpu0 100 0 50 800 40 5 5 0 9 9\ncpu1 7 7 7 7 7 7 7 7\nintr 5\n"
    assert counters.busy_seconds(text, {"cpu0"}) == 160 / counters.TICKS


def agent(**fields: Any) -> Any:
    return SimpleNamespace(folder=Path.home() / ".cache" / "phalanx", **fields)


@linux
def test_facts_of_this_machine() -> None:
    found = facts_of(facts.facts(agent(), {}, b""))
    assert found.hostname == socket.gethostname()
    assert 1 <= found.cores <= len(found.cpu_ids) == len(os.sched_getaffinity(0))
    assert found.memory and found.memory_available and found.memory_available <= found.memory
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
    with pytest.raises(Problem, match=r"cannot listen on 192\.0\.2\.77"):
        reach.listen(agent(), {"address": "192.0.2.77"}, b"")


@linux
def test_samples_come_until_they_are_not_wanted() -> None:
    told: list[dict[str, Any]] = []
    came = threading.Event()

    def send(header: dict[str, Any]) -> None:
        assert header["tell"] == "sample"
        told.append(header)
        came.set()

    hearer = SimpleNamespace(send=send)
    workers = SimpleNamespace(pids={0: os.getpid()}, codes={})
    machine = agent(connection=hearer, run_folder=None, workers=workers)
    sampling.sample(machine, {"on": True}, b"")
    sampling.sample(machine, {"on": True}, b"")
    assert came.wait(10)
    sampling.sample(machine, {"on": False}, b"")
    assert machine.sampler is None
    sample = sample_of(told[0])
    assert 0 <= sample.cpu_percent <= 100
    assert sample.memory_bytes > 0 and sample.workers_memory_bytes > 0
    assert sample.network_received is not None
    count = len(told)
    sampling.sample(machine, {"on": False}, b"")
    assert len(told) == count


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
            seconds, memory = table.use(families.of([child.pid]))
            counters.time.sleep(0.05)
        assert seconds >= 0.28, "the time of a child that has ended is its parent's"
        assert memory > 0
    finally:
        child.kill()
        child.wait()
