"""Fetches wheels here for a machine that reaches no package index."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from phalanx.core.errors import MachineError
from phalanx.core.files import cache_home
from phalanx.launch.link.event_loop import in_thread
from phalanx.launch.shipping.listing import walk
from phalanx.launch.shipping.manifest import FileManifest, make_manifest
from phalanx.launch.shipping.requirements import PipStep, Recipe, refuse_unsafe
from phalanx.launch.shipping.versions import Inspection

FETCH_SECONDS = 3600.0
OLD_NAMES = {5: "manylinux1", 12: "manylinux2010", 17: "manylinux2014"}
"""Older names of manylinux tags, by the minor version of glibc."""
_TICK = 0.2


async def fetch_wheels(
    recipe: Recipe, python: Inspection, machine: str
) -> tuple[Path, FileManifest]:
    """Return a folder with every wheel that ``recipe`` needs on ``machine``, and its manifest."""
    refuse_unsafe(recipe.steps, machine)
    digest = recipe.digest(python.version, python.platform)
    folder = cache_home() / "wheels" / digest
    folder.parent.mkdir(parents=True, exist_ok=True)
    async with _alone(folder):
        if not folder.is_dir():
            await _fetch(recipe, python, folder, machine)
    files = await in_thread(walk, folder, lambda path, is_folder: False)
    return folder, await in_thread(make_manifest, folder, files)


@contextlib.asynccontextmanager
async def _alone(folder: Path) -> AsyncIterator[None]:
    """Lock ``folder``, so that wheels are fetched only once for machines that need the same."""
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                await asyncio.sleep(_TICK)
        yield


async def _fetch(recipe: Recipe, python: Inspection, folder: Path, machine: str) -> None:
    """Download to a folder with a temporary name, renamed when it is complete."""
    part = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    for step in recipe.steps:
        await _download(step, python, part, machine)
    part.rename(folder)


async def _download(step: PipStep, python: Inspection, folder: Path, machine: str) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        words = [sys.executable, "-m", "pip", "download", "--only-binary=:all:", "--no-input"]
        words += ["--disable-pip-version-check", "--progress-bar", "off", "--dest", str(folder)]
        words += ["--python-version", python.version, "--implementation", "cp"]
        for platform in platforms(python.platform, python.libc):
            words += ["--platform", platform]
        for option, text in (("-r", step.requirements), ("-c", step.constraints)):
            if text:
                file = Path(scratch) / f"{option[1:]}.txt"
                file.write_text(text, encoding="utf-8")
                words += [option, str(file)]
        code, output = await _run(words, scratch)
    if code != 0:
        lines = [line for line in output.splitlines() if line.startswith("ERROR:")]
        said = (lines or output.splitlines() or ["pip printed nothing"])[-1][:300]
        raise MachineError(
            f"{machine} reaches no package index, and its wheels cannot be fetched here: {said}",
            "Install the requirements there, and set that 'python' in the blueprint.",
        )


async def _run(words: list[str], folder: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        *words,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        cwd=folder,  # so that pip imports no file of the project
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(FETCH_SECONDS):
            output, _ = await process.communicate()
        return process.returncode or 0, output.decode(errors="replace")
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


def platforms(platform: str, libc: tuple[str, str]) -> list[str]:
    """Return the tags of wheels that run on ``platform``, the newest first."""
    tag = platform.replace("-", "_").replace(".", "_")
    linux = re.fullmatch(r"linux_(\w+)", tag)
    mac = re.fullmatch(r"macosx_(\d+)_(\d+)_(\w+)", tag)
    if linux and libc[0] == "glibc":
        return [*_manylinux(linux[1], libc[1]), tag]
    if linux:
        return [f"musllinux_1_{minor}_{linux[1]}" for minor in (2, 1)] + [tag]
    if mac:
        kinds = (mac[3], "universal2")
        return [
            f"macosx_{major}_0_{kind}" for major in range(int(mac[1]), 10, -1) for kind in kinds
        ]
    return [tag]


def _manylinux(machine: str, libc: str) -> list[str]:
    found = []
    for minor in range(int(libc.split(".")[1]), 4, -1):
        found.append(f"manylinux_2_{minor}_{machine}")
        if minor in OLD_NAMES:
            found.append(f"{OLD_NAMES[minor]}_{machine}")
    return found
