"""Shipping over real SSH, with the link cut on the way."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

import pytest
from lab_machines import MakeLab, lab, ssh

from phalanx.core.errors import MachineError
from phalanx.lab.lab import Lab
from phalanx.launch.link.agent_link import open_agent
from phalanx.launch.shipping.manifest import FileManifest
from phalanx.launch.shipping.send import ship
from phalanx.launch.shipping.uploads import data_manifest
from phalanx.pool.machine import Machine

__all__ = ["lab"]
MEGABYTE = 1 << 20
SIZE = 200 * MEGABYTE


def machine_of(lab: Lab, folder: Path) -> Machine:
    found = lab.machines[0]
    return Machine(
        name=found.name,
        host=found.address,
        user="root",
        key=str(lab.key),
        host_key=found.host_key,
        python=sys.executable,
        folder=str(folder),
    )


def await_answer(lab: Lab, name: str) -> None:
    """Neighbours that were out of reach are looked for again only after a while."""
    for _ in range(100):
        try:
            ssh(lab, name, "true")
        except AssertionError:
            time.sleep(0.1)
        else:
            return
    pytest.fail(f"{name} does not come back")


async def send_until(
    machine: Machine, manifest: FileManifest, root: Path, lab: Lab, cut_at: int | None
) -> tuple[str, list[int]]:
    """Send the data, and cut the machine off when so many bytes have arrived."""
    told: list[int] = []

    def progress(done: int, total: int, name: str) -> None:
        told.append(total - done)
        if cut_at is not None and done >= cut_at and lab.machine(name).status == "up":
            lab.cut(name)

    async with await open_agent(machine, run="run-1", patience=3.0) as link:
        return await ship(link, manifest, root, "data", progress), told


@pytest.mark.slow
def test_a_slow_line_does_not_look_like_a_lost_machine(lab: MakeLab, tmp_path: Path) -> None:
    """Pings wait behind what is sent: were that as much as SSH takes, they would come too late."""
    made = lab(1, share=[tmp_path], rate="3mbit")
    root = tmp_path / "data"
    root.mkdir()
    (root / "big").write_bytes(os.urandom(4 * MEGABYTE))
    machine = machine_of(made, tmp_path / "there")
    path, _ = asyncio.run(send_until(machine, data_manifest(root)[1], root, made, None))
    assert (Path(path) / "big").read_bytes() == (root / "big").read_bytes()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_200_megabytes_go_on_where_the_link_was_cut(lab: MakeLab, tmp_path: Path) -> None:
    made = lab(1, share=[tmp_path])
    root, folder = tmp_path / "data", tmp_path / "there"
    root.mkdir()
    with (root / "big").open("wb") as file:
        for _ in range(SIZE // MEGABYTE):
            file.write(os.urandom(MEGABYTE))
    manifest = data_manifest(root)[1]
    machine = machine_of(made, folder)
    with pytest.raises(MachineError):
        asyncio.run(send_until(machine, manifest, root, made, SIZE // 2))
    (part,) = folder.glob("blobs/*/*.part")
    there = part.stat().st_size
    assert SIZE // 2 <= there < SIZE
    made.heal(machine.name)
    await_answer(made, machine.name)
    path, left = asyncio.run(send_until(machine, manifest, root, made, None))
    assert left[0] < SIZE - there + 4 * MEGABYTE
    assert left[-1] == 0
    assert (Path(path) / "big").read_bytes() == (root / "big").read_bytes()
    _, again = asyncio.run(send_until(machine, manifest, root, made, None))
    assert again == []
