from __future__ import annotations

from pathlib import Path

import pytest

from phalanx.core.errors import InputError
from phalanx.core.run_folder.run_paths import MOST_SHOWN, RunPaths, find_run, new_run, runs_home


def test_runs_of_the_same_moment_have_folders_of_their_own() -> None:
    folders = {new_run("same").folder for _ in range(5)}
    assert len(folders) == 5
    assert {folder.parent for folder in folders} == {runs_home()}


def test_the_home_of_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHALANX_RUNS", "~no-such-user/x")
    with pytest.raises(InputError, match="unknown user: ~no-such-user/x"):
        runs_home()


@pytest.mark.parametrize("kind", ["file", "link to nowhere"])
def test_something_else_in_the_place_of_the_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    home = tmp_path / "home"
    if kind == "file":
        home.write_text("")
    else:
        home.symlink_to(tmp_path / "nowhere")
    monkeypatch.setenv("PHALANX_RUNS", str(home))
    with pytest.raises(InputError, match="it exists and is not a folder") as caught:
        new_run("name")
    assert str(home) in caught.value.cause
    assert "PHALANX_RUNS" in caught.value.remedy


def test_a_mistyped_name_may_mean_an_old_run_and_few_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PHALANX_RUNS", str(tmp_path))
    names = ["mnist-allreduce", *(f"run{n}" for n in range(2 * MOST_SHOWN))]
    for number, name in enumerate(names):
        folder = tmp_path / f"202601{number + 10}-120000-{name}"
        folder.mkdir()
        (folder / "launch.json").write_text("{}")
    with pytest.raises(InputError) as caught:
        find_run("20260110-120000-mnist-alreduce")
    assert caught.value.remedy == "Did you mean '20260110-120000-mnist-allreduce'?"
    with pytest.raises(InputError) as caught:
        find_run("nothing like it")
    assert caught.value.remedy.count("-120000-") == MOST_SHOWN
    assert names[-1] in caught.value.remedy


def test_a_run_of_which_nothing_came_is_removed_and_no_other(tmp_path: Path) -> None:
    nothing, something = RunPaths(tmp_path / "a").make(), RunPaths(tmp_path / "b").make()
    something.plan.write_text("{}")
    for paths in (nothing, something):
        paths.remove_if_empty()
    assert not nothing.folder.exists()
    assert something.files.is_dir(), "with its empty folders"
