"""Environments: what they are made of, which Pythons go together, and one that is really made."""

from __future__ import annotations

import ast
import asyncio
import base64
import hashlib
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from shipping_support import Hearing, NearLink

import phalanx
from phalanx.agent.storage import environments as agent_environment
from phalanx.core.errors import InputError, MachineError
from phalanx.launch.link.agent_link import open_agent
from phalanx.launch.shipping import wheels
from phalanx.launch.shipping.environment import choose_python, inspect
from phalanx.launch.shipping.manifest import FileEntry, FileManifest
from phalanx.launch.shipping.requirements import (
    WORKER_PACKAGES,
    PipStep,
    Recipe,
    installed,
    own_requirements,
    read_recipe,
)
from phalanx.launch.shipping.send import ship
from phalanx.launch.shipping.versions import Inspection, check_versions
from phalanx.launch.shipping.wheels import platforms
from phalanx.pool.machine import Machine


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def recipe(root: Path, **files: str) -> Recipe:
    for name, text in files.items():
        (root / name.replace("_", ".")).write_text(text)
    found = read_recipe(root)
    assert found is not None
    return found


def test_a_worker_needs_what_it_imports() -> None:
    root = Path(phalanx.__file__).parent
    rooms = ("core", "pool", "plan", "observe", "data", "sync", "adapters", "train")
    files = [file for room in rooms for file in (root / room).rglob("*.py")]
    imported = {
        name.partition(".")[0]
        for file in files
        for node in ast.walk(ast.parse(file.read_bytes()))
        for name in imported_names(node)
    }
    # What a Keras script runs on comes with the script.
    guests = {"keras", "tensorflow", "jax"}
    foreign = imported - sys.stdlib_module_names - {"phalanx"} - guests
    assert foreign == {name.partition("-")[0] for name in WORKER_PACKAGES}
    required = {re.split("[<>=]", line)[0] for line in own_requirements()}
    assert required == set(WORKER_PACKAGES)


def imported_names(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module] if isinstance(node, ast.ImportFrom) and node.module else []


def test_a_lock_goes_before_requirements_before_constraints(tmp_path: Path) -> None:
    assert recipe(tmp_path, constraints_txt="torch==2.1").source == "constraints.txt"
    assert recipe(tmp_path, requirements_txt="einops").source == "requirements.txt"
    assert recipe(tmp_path, requirements_lock="einops==1").source == "requirements.lock"


def test_requirements_get_ours_in_the_versions_of_here(tmp_path: Path) -> None:
    (step,) = recipe(tmp_path, requirements_txt="einops>=0.7 # why\n\nNumPy==2.0.0\n").steps
    lines = step.requirements.splitlines()
    assert lines[:2] == ["einops>=0.7", "NumPy==2.0.0"]
    assert lines[2:] == own_requirements()
    pins = step.constraints.splitlines()
    assert f"torch=={installed()['torch'].partition('+')[0]}" in pins
    assert not [pin for pin in pins if pin.startswith("numpy")]


def test_constraints_alone_install_only_ours(tmp_path: Path) -> None:
    (step,) = recipe(tmp_path, constraints_txt="torch==2.4.1\nunrelated==3\n").steps
    assert step.requirements.splitlines() == own_requirements()
    assert step.constraints.startswith("torch==2.4.1\nunrelated==3\n")
    assert step.constraints.count("torch==") == 1


def test_hashes_are_kept_and_ours_come_after(tmp_path: Path) -> None:
    text = "einops==0.8.0 \\\n    --hash=sha256:abc\nnumpy==2.0.0 --hash=sha256:def\n"
    first, second = recipe(tmp_path, requirements_txt=text).steps
    assert first.requirements.splitlines()[0].split() == ["einops==0.8.0", "--hash=sha256:abc"]
    assert first.constraints == ""
    assert second.requirements.splitlines() == own_requirements()
    assert "numpy==2.0.0\n" in second.constraints
    assert "hash" not in second.constraints


def test_included_files_are_part_of_it(tmp_path: Path) -> None:
    (tmp_path / "more files").mkdir()
    (tmp_path / "more files/base.txt").write_text("einops==1\n-r deeper.txt\n")
    (tmp_path / "more files/deeper.txt").write_text("tqdm==2\n")
    (step,) = recipe(tmp_path, requirements_txt='-r "more files/base.txt"\nrich\n').steps
    assert step.requirements.splitlines()[:3] == ["einops==1", "tqdm==2", "rich"]


@pytest.mark.parametrize("line", ["-e .", "--editable=.", ".", "./lib", "../lib", "/lib", "file:x"])
def test_folders_are_refused(tmp_path: Path, line: str) -> None:
    with pytest.raises(InputError, match=r"requirements\.txt: .* installs a folder"):
        recipe(tmp_path, requirements_txt=f"einops\n{line}\n")


def test_a_file_that_includes_itself_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="includes itself"):
        recipe(tmp_path, requirements_txt="-r requirements.txt")


def test_the_digest_knows_contents_and_circumstances() -> None:
    one, other = Recipe("a", (PipStep("x", ""),)), Recipe("a", (PipStep("x", "y"),))
    digests = {one.digest("3.11", "arm"), one.digest("3.12", "arm"), other.digest("3.11", "arm")}
    assert len(digests) == 3
    assert Recipe("other.txt", one.steps).digest("3.11", "arm") in digests


PACKAGES = dict.fromkeys(WORKER_PACKAGES, "2.13.0")


def python(version: str = "3.11.7", **packages: str | None) -> Inspection:
    found = {**PACKAGES, **packages}
    return Inspection("/usr/bin/python3", version, {n: v for n, v in found.items() if v})


def test_small_differences_are_told() -> None:
    found = {"m1": python(), "m2": python("3.12.1", torch="2.13.1"), "m3": python()}
    assert check_versions(found) == [
        "the machines have slightly different versions of torch: m1, m3 2.13.0; m2 2.13.1",
        "the machines have different versions of Python: m1, m3 3.11.7; m2 3.12.1",
    ]


def test_missing_packages_are_named_with_the_command() -> None:
    with pytest.raises(MachineError, match=r"m1: /usr/bin/python3 has no torch, msgspec") as caught:
        check_versions({"m1": python(torch=None, msgspec=None, cryptography=None)})
    assert "/usr/bin/python3 -m pip install torch msgspec " in caught.value.remedy


def test_all_machines_that_cannot_take_part_are_named_at_once() -> None:
    with pytest.raises(MachineError) as caught:
        check_versions({"m1": python("3.9.2"), "m2": python(), "m3": python(torch=None)})
    assert "m1 has Python 3.9.2" in caught.value.cause
    assert "m3: /usr/bin/python3 has no torch" in caught.value.cause
    first, second = caught.value.remedy.splitlines()
    assert first.startswith("m1: Install one there") and second.startswith("  m3: Run there:")


def test_encryption_needs_its_package() -> None:
    found = {"m1": python(cryptography=None)}
    assert check_versions(found) == []
    with pytest.raises(MachineError, match="has no cryptography"):
        check_versions(found, tls=True)


def test_tags_of_platforms() -> None:
    linux = platforms("linux-x86_64", ("glibc", "2.17"))
    assert linux[:2] == ["manylinux_2_17_x86_64", "manylinux2014_x86_64"]
    assert linux[-2:] == ["manylinux1_x86_64", "linux_x86_64"]
    assert platforms("linux-aarch64", ("", "")) == [
        "musllinux_1_2_aarch64",
        "musllinux_1_1_aarch64",
        "linux_aarch64",
    ]
    mac = platforms("macosx-13.2-arm64", ("", ""))
    assert mac[0] == "macosx_13_0_arm64"
    assert mac[-1] == "macosx_11_0_universal2"


def test_a_python_is_inspected_without_importing_torch(tmp_path: Path) -> None:
    link = NearLink(tmp_path)
    found = asyncio.run(inspect(link, sys.executable))
    assert found.packages == installed()
    assert found.minor == sys.version_info[:2]


@pytest.mark.parametrize("python", ["no-such-python", "/etc/passwd", "false"])
def test_no_python_there_is_a_clear_line(tmp_path: Path, python: str) -> None:
    with pytest.raises(MachineError, match=f"m1: cannot run '{python}': ") as caught:
        asyncio.run(inspect(NearLink(tmp_path), python))
    assert "blueprint" in caught.value.remedy


def make_wheel(folder: Path, name: str, version: str) -> None:
    """The smallest package there can be."""
    info = f"{name}-{version}.dist-info"
    contents = {
        f"{name}.py": "here = True\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    lines = []
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for path, text in contents.items():
            archive.writestr(path, text)
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest())
            lines.append(f"{path},sha256={digest.decode().rstrip('=')},{len(text)}")
        archive.writestr(f"{info}/RECORD", "\n".join([*lines, f"{info}/RECORD,,", ""]))


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """pip finds no index; only ``tmp_path/wheels``, and only where it is told."""
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_NO_INDEX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")


@pytest.mark.slow
def test_an_offline_machine_gets_wheels_from_here(
    tmp_path: Path, offline: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For real: venv, pip, a first failure, wheels fetched and sent, an environment that works."""
    root = tmp_path / "project"
    root.mkdir()
    (root / "requirements.txt").write_text("tiny_for_phalanx==1.5\n")
    make_wheel(tmp_path / "index", "tiny_for_phalanx", "1.5")
    monkeypatch.setattr("phalanx.launch.shipping.requirements.own_requirements", list)
    run = wheels._run
    from_index = ["--no-index", "--find-links", str(tmp_path / "index")]
    monkeypatch.setattr(wheels, "_run", lambda words, folder: run([*words, *from_index], folder))
    notes: list[str] = []

    async def go() -> list[Inspection]:
        machine = Machine(name="m1", host="127.0.0.1", folder=str(tmp_path / "there ü"))
        near = Machine(name="m1", host="here", folder=str(tmp_path / "there ü"))
        found = []
        for run_id in ("run-1", "run-2"):
            hearing = Hearing(lambda name, told, payload: notes.append(told.get("text", "")))
            async with await open_agent(near, run=run_id, listener=hearing) as link:
                link.machine = machine  # as any other machine: it gets an environment of its own
                choice = await choose_python(link, root)
                found.append(await choice.prepare(link))
                assert found[-1].executable == choice.executable(link)
        return found

    first, second = asyncio.run(go())
    assert first == second
    code = "import tiny_for_phalanx as t; print(t.here)"
    ended = subprocess.run([first.executable, "-c", code], capture_output=True, check=True)
    assert ended.stdout == b"True\n"
    assert first.executable.startswith(str(tmp_path / "there ü/environments/"))
    assert (
        notes.count("creating a virtual environment") == 2
    )  # without wheels, with them, never again


@pytest.mark.slow
def test_what_pip_says_is_told(tmp_path: Path, offline: None) -> None:
    make_wheel(tmp_path / "index", "tiny_for_phalanx", "1.5")
    steps = [{"requirements": "tiny_for_phalanx==9", "constraints": ""}]
    link = NearLink(tmp_path / "there")
    asked = {"python": sys.executable, "digest": "a" * 64, "steps": steps}
    with pytest.raises(MachineError, match="No matching distribution found for tiny"):
        asyncio.run(link.ask("environment", timeout=110, wheels=str(tmp_path / "index"), **asked))
    assert not (tmp_path / "there/environments" / ("a" * 64) / agent_environment.MARKER).exists()


def test_an_interrupted_environment_is_never_used(tmp_path: Path) -> None:
    digest = "b" * 64
    folder = tmp_path / "environments" / digest
    (folder / "bin").mkdir(parents=True)
    (folder / "bin/python").symlink_to(sys.executable)
    link, asked = NearLink(tmp_path), {"digest": digest, "steps": [], "python": "no-such-python"}
    with pytest.raises(MachineError, match="cannot create a virtual environment"):
        asyncio.run(link.ask("environment", **asked))
    assert not folder.exists()
    (folder / "bin").mkdir(parents=True)
    (folder / "bin/python").symlink_to(sys.executable)
    (folder / agent_environment.MARKER).touch()
    answer = asyncio.run(link.ask("environment", **asked))
    assert answer == {"python": str(folder / "bin/python"), "made": False}


class Liar(NearLink):
    """A machine that answers as it likes."""

    answers: dict[str, dict[str, Any]]

    async def ask(self, name: str, **fields: Any) -> dict[str, Any]:
        return self.answers[name]


@pytest.mark.parametrize(
    "have",
    [
        {"missing": 3},
        {"missing": [[7, 0]]},
        {"missing": [[0, 99]]},
        {"missing": [[-1, 0]]},
        {"missing": [], "next": 0},
        {"manifest_offset": 10**9},
        {"missing": []},
    ],
)
def test_what_an_agent_says_is_not_trusted(tmp_path: Path, have: dict[str, Any]) -> None:
    link = Liar(tmp_path)
    link.answers = {"inspect": {"executable": 3}, "have": have, "lay_out": {"path": 5}}
    with pytest.raises(MachineError, match="an invalid answer"):
        asyncio.run(inspect(link, "python3"))
    with pytest.raises(MachineError, match="an invalid answer"):
        asyncio.run(ship(link, FileManifest((FileEntry("a", 1, "a" * 64),)), tmp_path, "data"))


def test_different_torches_are_refused() -> None:
    with pytest.raises(MachineError, match=r"m1 2\.13\.0; m2 2\.11\.0"):
        check_versions({"m1": python(), "m2": python(torch="2.11.0")})
