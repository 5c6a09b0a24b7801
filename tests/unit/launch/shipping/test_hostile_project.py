"""A project that wants files of this machine, or to run something on it."""

from __future__ import annotations

import asyncio
import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from phalanx.core.errors import InputError, PhalanxError
from phalanx.launch.shipping.project import project_manifest
from phalanx.launch.shipping.requirements import (
    PipStep,
    Recipe,
    own_requirements,
    read_recipe,
    refuse_unsafe,
)
from phalanx.launch.shipping.uploads import data_manifest
from phalanx.launch.shipping.versions import Inspection
from phalanx.launch.shipping.wheels import fetch_wheels

SECRET = "a private key\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    (tmp_path / "id_ed25519").write_text(SECRET)
    root = tmp_path / "project"
    root.mkdir()
    (root / "train.py").write_text("import phalanx\n")
    (root / "pyproject.toml").write_text("")
    return root


def test_a_link_to_a_file_outside_is_not_sent_as_that_file(project: Path) -> None:
    link = project / "weights.bin"
    link.symlink_to(project.parent / "id_ed25519")
    with pytest.raises(InputError, match="is outside of what is sent") as caught:
        project_manifest(project / "train.py")
    assert str(link) in caught.value.cause and "follow_links" in caught.value.remedy
    with pytest.raises(InputError, match="is outside of what is sent"):
        data_manifest(project)
    _, manifest = project_manifest(project / "train.py", follow=True)
    assert {e.path: e.size for e in manifest.entries}["weights.bin"] == len(SECRET)


def test_a_link_to_what_is_left_out_is_not_sent_as_that_file(project: Path) -> None:
    (project / ".gitignore").write_text(".env\n")
    (project / ".env").write_text("TOKEN=1\n")
    (project / "readme").symlink_to(".env")
    with pytest.raises(InputError, match="which is excluded"):
        project_manifest(project / "train.py")


@pytest.mark.parametrize("line", ["-r ../id_ed25519", "-c ../id_ed25519", "-r{0}", "-r inner/up"])
def test_requirements_outside_of_the_project_are_not_read(project: Path, line: str) -> None:
    (project / "inner").mkdir()
    (project / "inner/up").symlink_to(project.parent / "id_ed25519")
    text = line.format(project.parent / "id_ed25519")
    (project / "requirements.txt").write_text(f"numpy\n{text}\n")
    with pytest.raises(InputError, match="outside the project"):
        read_recipe(project)


def test_requirements_that_are_a_link_are_not_read(project: Path) -> None:
    (project / "requirements.txt").symlink_to(project.parent / "id_ed25519")
    with pytest.raises(InputError, match="outside the project"):
        read_recipe(project)


def test_files_beside_each_other_in_the_project_are_read(project: Path) -> None:
    (project / "deps").mkdir()
    (project / "deps/more.txt").write_text("-r ../base.txt\ntqdm\n")
    (project / "base.txt").write_text("einops\n")
    (project / "requirements.txt").write_text("-r deps/more.txt\n")
    recipe = read_recipe(project)
    assert recipe.steps[0].requirements.splitlines()[:2] == ["einops", "tqdm"]


def fetch(text: str) -> None:
    version = ".".join(map(str, sys.version_info[:2]))
    python = Inspection(sys.executable, version, {}, "linux-x86_64", ("glibc", "2.36"))
    asyncio.run(fetch_wheels(Recipe("requirements.txt", (PipStep(text, ""),)), python, "m1"))


def evil_source(project: Path) -> tuple[Path, Path]:
    """A source package whose build leaves a mark, and the mark."""
    mark = project.parent / "ran"
    source = project / "evil"
    source.mkdir()
    (source / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "b"\nbackend-path = ["."]\n'
        '[project]\nname = "evil"\nversion = "1.0"\n'
    )
    (source / "b.py").write_text(f"open({str(mark)!r}, 'w')\nraise SystemExit(1)\n")
    return source, mark


def test_pip_builds_nothing_of_the_project_here(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, mark = evil_source(project)
    monkeypatch.chdir(project)
    archive = project / "evil-1.0.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        for file in source.iterdir():
            packed.write(file, f"evil-1.0/{file.name}")
    for line in (f"evil @ {source.as_uri()}", "evil-1.0.zip"):
        with pytest.raises(PhalanxError) as caught:
            fetch(f"{line}\n")
        assert not mark.exists(), f"{line} was built"
        assert "only packages with names" in caught.value.cause


@pytest.mark.parametrize(
    "line",
    [
        "evil @ https://example.com/evil.tar.gz",
        "evil@git+https://example.com/evil",
        "git+https://example.com/evil#egg=evil",
        "https://example.com/evil.zip",
        "evil-1.0.tar.gz",
        "evil.whl ; python_version > '3'",
        "--no-binary :all:",
        "--only-binary :none:",
        "--find-links /home",
        "-f .",
        "--index-url https://example.com/${HOME}/",
        "--extra-index-url file:///srv",
        "numpy==1.0 --config-settings=x=y",
    ],
)
def test_other_lines_are_not_given_to_pip_here(project: Path, line: str) -> None:
    with pytest.raises(InputError, match="only packages with names") as caught:
        fetch(f"{line}\n")
    assert line[:30] in caught.value.cause


def test_names_with_versions_marks_hashes_and_indexes_are() -> None:
    lines = (
        "numpy",
        "NumPy>=1.2,<3 ; python_version > '3.8' and extra == 'a@b'",
        "torch[cuda,x] ~= 2.1 --hash=sha256:ab --hash=sha256:cd",
        "--extra-index-url https://example.com/simple",
        "-i https://example.com/simple",
        "--pre",
    )
    refuse_unsafe([PipStep("".join(f"{line}\n" for line in lines), "")], "m1")


def test_constraints_with_hashes(project: Path) -> None:
    text = "msgspec==0.19 --hash=sha256:ab\nunrelated==3 --hash=sha256:cd\n"
    (project / "constraints.txt").write_text(text)
    recipe = read_recipe(project)
    first, rest = recipe.steps
    assert first == PipStep("msgspec==0.19 --hash=sha256:ab\n", text)
    assert rest.requirements.splitlines() == own_requirements()
    assert rest.constraints.startswith("msgspec==0.19\nunrelated==3\n")
    assert "hash" not in rest.constraints


def test_constraints_of_requirements_stay_constraints(project: Path) -> None:
    (project / "versions.txt").write_text("unrelated==3\n")
    (project / "requirements.txt").write_text("-c versions.txt\neinops\n")
    recipe = read_recipe(project)
    (step,) = recipe.steps
    assert "unrelated" not in step.requirements and step.requirements.startswith("einops\n")
    assert step.constraints.startswith("unrelated==3\n")


def test_pip_takes_what_constraints_with_hashes_become(project: Path, tmp_path: Path) -> None:
    """Hashes in a constraints file make pip want one for everything that it installs with it."""
    wheel = tmp_path / "msgspec-0.19-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as packed:
        about = "Metadata-Version: 2.1\nName: msgspec\nVersion: 0.19\n"
        packed.writestr("msgspec-0.19.dist-info/METADATA", about)
        packed.writestr("msgspec-0.19.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        packed.writestr("msgspec-0.19.dist-info/RECORD", "")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    (project / "constraints.txt").write_text(f"msgspec==0.19 --hash=sha256:{digest}\n")
    recipe = read_recipe(project)
    (tmp_path / "r.txt").write_text(recipe.steps[0].requirements)
    (tmp_path / "c.txt").write_text(recipe.steps[0].constraints)
    pip = [sys.executable, "-m", "pip", "download", "--find-links", str(tmp_path)]
    pip += ["--dest", str(tmp_path / "out"), "-r", str(tmp_path / "r.txt")]
    done = subprocess.run([*pip, "-c", str(tmp_path / "c.txt")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
