"""Which files of a project are sent."""

from __future__ import annotations

import hashlib
import os
import socket
from pathlib import Path

import pytest

from phalanx.core.errors import InputError
from phalanx.launch.shipping import manifest as hashes
from phalanx.launch.shipping.project import find_root, list_files, project_manifest
from phalanx.launch.shipping.uploads import data_manifest


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)


def write_all(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    return root


def listed(root: Path) -> list[str]:
    return [file.path for file in list_files(root)]


@pytest.mark.parametrize("mark", [".git/", "pyproject.toml", "setup.py", "requirements-gpu.txt"])
def test_the_nearest_mark_above_the_script_is_the_root(tmp_path: Path, mark: str) -> None:
    root = tmp_path / "mein projekt"
    write_all(root, {"deep/er/train.py": "", ".git/HEAD" if mark == ".git/" else mark: ""})
    assert find_root(root / "deep/er/train.py") == root


def test_a_script_without_a_project_has_its_folder(tmp_path: Path) -> None:
    write_all(tmp_path / "a", {"b/train.py": "", "b/helper.py": ""})
    root, manifest = project_manifest(tmp_path / "a/b/train.py")
    assert root == tmp_path / "a/b"
    assert [entry.path for entry in manifest.entries] == ["helper.py", "train.py"]


def test_home_is_never_a_root(tmp_path: Path) -> None:
    home = write_all(
        tmp_path / "home",
        {"pyproject.toml": "", "x/train.py": "", "train.py": "import tool", "tool.py": "", "s": ""},
    )
    assert find_root(home / "x/train.py") == home / "x"
    write_all(tmp_path, {"setup.py": "", "y/train.py": ""})
    assert find_root(tmp_path / "y/train.py") == tmp_path / "y"  # what is above it neither
    _, manifest = project_manifest(home / "train.py")
    assert [entry.path for entry in manifest.entries] == ["tool.py", "train.py"]


def test_what_git_ignores_stays_here(tmp_path: Path) -> None:
    write_all(
        tmp_path,
        {
            ".gitignore": "*.log\n/out/\nbuild/*\n!build/keep.txt\n",
            "train.py": "",
            "a.log": "",
            "deep/a.log": "",
            "out/x": "",
            "deep/out/x": "",
            "build/keep.txt": "",
            "build/drop.txt": "",
            "deep/.gitignore": "!a.log\nsecret\n",
            "deep/secret": "",
            "secret": "",
        },
    )
    assert listed(tmp_path) == [
        ".gitignore",
        "build/keep.txt",
        "deep/.gitignore",
        "deep/a.log",
        "deep/out/x",
        "secret",
        "train.py",
    ]


def test_nothing_below_an_ignored_folder_comes_back(tmp_path: Path) -> None:
    write_all(tmp_path, {".gitignore": "data\n!data/keep\n", "data/keep": "", "a.py": ""})
    assert listed(tmp_path) == [".gitignore", "a.py"]


def test_the_repository_above_has_a_word_on_a_folder_in_it(tmp_path: Path) -> None:
    files = {".git/info/exclude": "own.txt", ".gitignore": "/part/big\n*.ckpt"}
    write_all(tmp_path / "r", files)
    names = ("setup.py", "big", "x.ckpt", "own.txt", "deep/big")
    root = write_all(tmp_path / "r/part", dict.fromkeys(names, ""))
    assert listed(root) == ["deep/big", "setup.py"]


def test_without_a_repository_nothing_above_counts(tmp_path: Path) -> None:
    write_all(tmp_path, {".gitignore": "*", "p/setup.py": ""})
    assert listed(tmp_path / "p") == ["setup.py"]


def test_what_is_never_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHALANX_RUNS", str(tmp_path / "p/results"))
    root = write_all(
        tmp_path / "p",
        {
            ".git/HEAD": "",
            ".venv/x": "",
            "venv/x": "",
            "__pycache__/x.pyc": "",
            "x.pyc": "",
            "node_modules/x": "",
            "results/1/launch.json": "",
            "runs/1/launch.json": "",
            "deep/runs/x.py": "",
        },
    )
    os.mkfifo(root / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        monkeypatch.chdir(root)
        listener.bind("socket")
        assert listed(root) == ["deep/runs/x.py"]


def test_an_ignored_script_is_sent_all_the_same(tmp_path: Path) -> None:
    root = write_all(tmp_path / "p", {".gitignore": "*.py", "train.py": "1", "setup.py": ""})
    _, manifest = project_manifest(root / "train.py")
    assert [entry.path for entry in manifest.entries] == [".gitignore", "train.py"]


def test_links_inside_stay_links_and_files_outside_are_sent_if_asked_for(tmp_path: Path) -> None:
    write_all(tmp_path, {"outside.txt": "there", "p/deep/a.txt": "abc", "p/.gitignore": "hidden"})
    root = write_all(tmp_path / "p", {"hidden": "12345"})
    (root / "relative").symlink_to("deep/a.txt")
    (root / "absolute").symlink_to(root / "deep")
    (root / "deep/up").symlink_to("../relative")
    (root / "out").symlink_to(tmp_path / "outside.txt")
    (root / "shown").symlink_to("hidden")
    found = {file.path: (file.link, file.size) for file in list_files(root, follow=True)}
    assert found["relative"] == ("deep/a.txt", 0)
    assert found["absolute"] == ("deep", 0)
    assert found["deep/up"] == ("a.txt", 0)
    assert found["out"] == ("", 5)
    assert found["shown"] == ("", 5)


@pytest.mark.parametrize(
    ("target", "why"),
    [("../elsewhere", "a folder outside"), ("gone", "to nothing"), ("l", "to nothing")],
)
def test_links_that_lead_away_are_refused(tmp_path: Path, target: str, why: str) -> None:
    (tmp_path / "elsewhere").mkdir()
    root = write_all(tmp_path / "p", {"a.py": ""})
    (root / "l").symlink_to(target)
    with pytest.raises(InputError, match=why) as caught:
        list_files(root)
    assert "gitignore" in caught.value.remedy
    (root / ".gitignore").write_text("/l\n")
    assert listed(root) == [".gitignore", "a.py"]


def test_too_much_names_the_largest(tmp_path: Path) -> None:
    for size in (1, 2000, 3000, 4000):
        (tmp_path / f"f{size}").write_bytes(bytes(size))
    with pytest.raises(InputError, match=r"f4000 .*f3000 .*f2000 ") as caught:
        list_files(tmp_path, limit=9000)
    assert "f1 " not in caught.value.cause
    for remedy in (".gitignore", "ship_limit", "--data"):
        assert remedy in caught.value.remedy
    assert len(list_files(tmp_path, limit=9001)) == 4


def test_names_of_any_language_and_no_others(tmp_path: Path) -> None:
    write_all(tmp_path / "p", {"grüße 世界/a b.py": "x"})
    assert listed(tmp_path / "p") == ["grüße 世界/a b.py"]
    (tmp_path / "p" / os.fsdecode(b"caf\xe9")).write_text("")
    with pytest.raises(InputError, match=r"'caf\?' is not UTF-8"):
        list_files(tmp_path / "p")


def test_the_manifest_says_what_is_there(tmp_path: Path) -> None:
    root = write_all(tmp_path / "p", {"train.py": "print()", "b.sh": "#!"})
    (root / "b.sh").chmod(0o755)
    (root / "empty").mkdir()
    _, manifest = project_manifest(root / "train.py")
    script, empty, train = manifest.entries
    assert (script.path, script.executable, empty.folder, train.executable) == (
        "b.sh",
        True,
        True,
        False,
    )
    assert train.sha256 == hashlib.sha256(b"print()").hexdigest()
    before = manifest.digest
    (root / "train.py").write_text("print( )")
    assert project_manifest(root / "train.py")[1].digest != before


def test_unchanged_files_are_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = write_all(tmp_path / "p", {"a": "old", "b": "same"})
    for name in ("a", "b"):
        os.utime(root / name, (1, 1))
    first = data_manifest(root)[1]
    read: list[str] = []
    digest = hashlib.file_digest
    monkeypatch.setattr(
        hashes.hashlib, "file_digest", lambda f, name: read.append(f.name) or digest(f, name)
    )
    assert data_manifest(root)[1] == first
    assert read == []
    (root / "a").write_text("new")
    assert data_manifest(root)[1] != first
    assert [Path(name).name for name in read] == ["a"]
    data_manifest(root)  # changed a moment ago: its time alone proves nothing yet
    assert [Path(name).name for name in read] == ["a", "a"]


def test_data_have_to_be_a_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a folder"):
        data_manifest(tmp_path / "none")


def test_a_pipe_in_place_of_rules_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    os.mkfifo(tmp_path / ".gitignore")
    assert [file.path for file in list_files(tmp_path)] == ["train.py"]
