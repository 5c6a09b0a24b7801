"""A bundle has what a rerun needs, nothing secret, and the same bytes each time."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest
from made_runs import write_run, write_study

from phalanx.core.errors import InputError
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.launch.run.open_run_folder import keep_source
from phalanx.report.bundle import write_bundle
from phalanx.report.html import write_report


def make_project(home: Path) -> Path:
    (home / "parts").mkdir(parents=True)
    script = home / "train.py"
    script.write_text("import json\nimport helper\nfrom parts import model\nimport phalanx\n")
    (home / "helper.py").write_text("import train\n")
    (home / "parts" / "__init__.py").write_text("")
    (home / "parts" / "model.py").write_text("from . import layers\n")
    (home / "parts" / "layers.py").write_text("from ..helper import x\n")
    (home / "unrelated.py").write_text("SECRET = 'do not pack'\n")
    return script


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunPaths:
    home = tmp_path_factory.mktemp("bundle")
    script = make_project(home / "project")
    command = ["phalanx", "run", str(script), "--seed", "7"]
    paths = write_run(home / "runs", "run", script=str(script), command=command, seed=7)
    launch = json.loads(paths.launch.read_text())
    launch["workers"][0]["env"]["PHALANX_KEY"] = "hunter2-key"
    paths.launch.write_text(json.dumps(launch))
    keep_source(script, paths)
    (paths.folder / "blueprint.yaml").write_text("password: hunter2-password")
    return paths


@pytest.fixture(scope="module")
def bundle(run: RunPaths) -> Path:
    return write_bundle(run, write_report(run), run.folder / "out" / "digits.tar.gz")


def contents(bundle: Path) -> dict[str, bytes]:
    found = {}
    with tarfile.open(bundle) as archive:
        for member in archive:
            file = archive.extractfile(member)
            assert file is not None and member.mtime == 0 and not member.uname
            found[member.name.partition("/")[2]] = file.read()
    return found


def test_it_holds_what_a_rerun_needs(bundle: Path) -> None:
    files = contents(bundle)
    assert {"README.txt", "command.txt", "requirements.txt", "seeds.json", "data.json",
            "summary.json", "report.html", "script/train.py"} <= set(files)  # fmt: skip
    assert b"--seed 7" in files["command.txt"]
    assert b"phalanx run train.py --seed 7" in files["README.txt"]
    assert json.loads(files["seeds.json"]) == {"run": 7}
    assert json.loads(files["data.json"])[0]["checksums"]["digits.csv"].startswith("sha256:")
    assert json.loads(files["summary.json"])["run"] == "run"
    lines = files["requirements.txt"].decode().splitlines()
    assert all("==" in line for line in lines)
    assert any(line.startswith("msgspec==") for line in lines)


def test_only_modules_that_the_script_imports_are_packed(bundle: Path) -> None:
    packed = {name for name in contents(bundle) if name.startswith("script/")}
    assert packed == {"script/train.py", "script/helper.py", "script/parts/__init__.py",
                      "script/parts/model.py", "script/parts/layers.py"}  # fmt: skip


def test_the_same_run_gives_the_same_bytes(run: RunPaths, bundle: Path, tmp_path: Path) -> None:
    again = write_bundle(run, write_report(run), tmp_path / bundle.name)
    assert again.read_bytes() == bundle.read_bytes()


def test_no_environment_and_no_blueprint(bundle: Path) -> None:
    files = contents(bundle)
    assert not [name for name, content in files.items() if b"hunter2" in content]


def plain_run(home: Path, name: str = "run") -> tuple[RunPaths, Path]:
    """A run without source, and a report that took no time."""
    report = home / "report.html"
    report.write_text("a report")
    return write_run(home, name, script=str(home / "secret.py"), epochs=0), report


def test_a_script_that_is_gone_is_said(tmp_path: Path) -> None:
    files = contents(write_bundle(*plain_run(tmp_path), tmp_path / "b.tar.gz"))
    assert b"not found" in files["README.txt"]
    assert not [name for name in files if name.startswith("script/")]


def test_nothing_outside_the_run_s_folder_is_packed(tmp_path: Path) -> None:
    """Not what ``launch.json`` names as the script, and not what links lead to."""
    paths, report = plain_run(tmp_path)
    (tmp_path / "secret.py").write_text("hunter2")
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "id").write_text("hunter2")
    paths.source.mkdir()
    (paths.source / "train.py").symlink_to(tmp_path / "secret.py")
    (paths.source / "parts").symlink_to(tmp_path / "keys")
    (paths.source / "kept.py").write_text("mine")

    files = contents(write_bundle(paths, report, tmp_path / "b.tar.gz"))
    assert [name for name in files if name.startswith("script/")] == ["script/kept.py"]
    assert not [name for name, content in files.items() if b"hunter2" in content]


def test_a_bundle_replaces_a_link_and_leaves_its_target(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    target = tmp_path / "b.tar.gz"
    target.symlink_to(tmp_path / "precious")
    write_bundle(*plain_run(tmp_path), target)
    assert (tmp_path / "precious").read_text() == "precious"
    assert contents(target)


def test_a_script_changed_between_the_runs_is_said(tmp_path: Path) -> None:
    for name in ("one", "two"):
        paths, report = plain_run(tmp_path, name)
        paths.source.mkdir()
        (paths.source / "train.py").write_text(name)
    study = write_study(tmp_path, "study", ["one", "two"])
    files = contents(write_bundle(study, report, tmp_path / "b.tar.gz"))
    assert b"changed between the runs" in files["README.txt"]
    assert files["script/train.py"] == b"one"


def test_a_study_packs_all_its_summaries(tmp_path: Path) -> None:
    _, report = plain_run(tmp_path)
    study = write_study(tmp_path, "study", ["run"])
    files = contents(write_bundle(study, report, tmp_path / "b.tar.gz"))
    summary = json.loads(files["summary.json"])
    assert summary["study"] == "study" and [r["run"] for r in summary["runs"]] == ["run"]


def test_a_target_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for target in (tmp_path / "file" / "b.tar.gz", tmp_path):
        with pytest.raises(InputError, match="cannot write the bundle"):
            write_bundle(*plain_run(tmp_path), target)
