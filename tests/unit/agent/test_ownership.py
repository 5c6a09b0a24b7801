"""What others can write to is not used: folders, those above them, and what lies in them."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from agent_process import AgentProcess
from agent_process import agent as agent
from agent_process import new_agent as new_agent

from phalanx.agent.frames import RequestProblem
from phalanx.agent.life import make_folders
from phalanx.agent.storage import environments as environment
from phalanx.agent.storage import folders as files
from phalanx.agent.storage.blobs import BlobStore, store_of

SOMEBODY = 65534
GOOD, EVIL = b"print('good')\n", b"print('evil')\n"

as_root = pytest.mark.skipif(os.getuid() != 0, reason="gives files to another user")


def digest_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class Cache:
    """A folder on a machine into which a package was sent and laid out."""

    def __init__(self, folder: Path) -> None:
        self.agent = SimpleNamespace(folder=folder, run_folder=None, tell=lambda *_, **__: None)
        make_folders(folder, None)
        entry = {"path": "package/module.py", "sha256": digest_of(GOOD), "size": len(GOOD)}
        self.entry: dict[str, Any] = {**entry, "link": "", "folder": False, "executable": False}
        self.content = json.dumps({"entries": [self.entry]}).encode()
        self.words = {"kind": "code", "manifest": digest_of(self.content)}
        for blob in (GOOD, self.content):
            self.send(blob)
        self.module = self.laid_out() / "package" / "module.py"

    def send(self, blob: bytes) -> None:
        self.store.receive(digest_of(blob), 0, True, blob)

    @property
    def store(self) -> BlobStore:
        return store_of(self.agent)

    def have(self) -> dict[str, Any]:
        """As the next run asks: with an agent that has looked at nothing yet."""
        self.store._checked.clear()
        return files.have(self.agent, {**self.words, "size": len(self.content)}, b"")

    def laid_out(self) -> Path:
        return Path(files.lay_out(self.agent, self.words, b"")["path"])


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "phalanx")


def test_a_folder_of_a_group_is_refused(new_agent: Callable[[], AgentProcess]) -> None:
    """Mode 2775 and umask 002, as groups that work together have it."""
    before = os.umask(0o002)
    try:
        one = new_agent()
        one.folder.mkdir()
        one.folder.chmod(0o2775)
        answer = one.greet()
        assert "other users can write" in answer["cause"] and "blueprint" in answer["remedy"]
        one.folder.chmod(0o755)
        again = new_agent()
        assert again.greet()["folder"] == str(one.folder)
        modes = {p: p.stat().st_mode & 0o077 for p in one.folder.rglob("*")}
        assert modes and not any(modes.values()), "what the agent makes is for its user alone"
        again.start([sys.executable, "-c", "import os; print(oct(os.umask(0)))"])
        assert again.log_with(0, b"\n") == b"0o22\n"
        assert "other users can write" not in again.greet().get("cause", "")
        one.folder.chmod(0o2775)
        assert "other users can write" in new_agent().greet(attach=True)["cause"]
    finally:
        os.umask(before)


@pytest.mark.parametrize(("mode", "refused"), [(0o777, True), (0o775, True), (0o1777, False)])
def test_folders_above_it_count(tmp_path: Path, mode: int, refused: bool) -> None:
    """Who can write there can put another folder in its place; not where it is sticky, as /tmp."""
    above = tmp_path / "above"
    make_folders(above / "between" / "phalanx", None)
    above.chmod(mode)
    if not refused:
        make_folders(above / "between" / "phalanx", None)
        return
    with pytest.raises(RequestProblem, match=f"other users can write to {above}"):
        make_folders(above / "between" / "phalanx", None)


def test_folders_that_links_lead_through_count(tmp_path: Path) -> None:
    make_folders(tmp_path / "far" / "phalanx", None)
    (tmp_path / "near").mkdir()
    (tmp_path / "near" / "link").symlink_to("../far")
    make_folders(tmp_path / "near" / "link" / "phalanx", None)
    (tmp_path / "far").chmod(0o777)
    with pytest.raises(RequestProblem, match="other users can write"):
        make_folders(tmp_path / "near" / "link" / "phalanx", None)


@as_root
@pytest.mark.parametrize("whose", ["folder", "above", "link"])
def test_what_belongs_to_another_user_is_refused(tmp_path: Path, whose: str) -> None:
    (tmp_path / "above").mkdir()
    tmp_path.chmod(0o1777)
    (tmp_path / "link").symlink_to("above")
    make_folders(tmp_path / "above" / "folder", None)
    place = tmp_path / "above" / "folder" if whose == "folder" else tmp_path / whose
    os.chown(place, SOMEBODY, SOMEBODY, follow_symlinks=False)
    with pytest.raises(RequestProblem, match="belongs to another user"):
        make_folders(tmp_path / ("link" if whose == "link" else "above") / "folder", None)


def change(cache: Cache) -> None:
    cache.module.write_bytes(EVIL)


def add(cache: Cache) -> None:
    (cache.module.parent / "added.py").write_bytes(EVIL)


def add_compiled(cache: Cache) -> None:
    (cache.module.parent.parent / "torch.pyc").write_bytes(EVIL)


def add_link(cache: Cache) -> None:
    (cache.module.parent.parent / "torch").symlink_to("/tmp")


def link_away(cache: Cache) -> None:
    elsewhere = cache.module.parents[3] / "elsewhere.py"
    elsewhere.write_bytes(GOOD)
    cache.module.unlink()
    cache.module.symlink_to(elsewhere)


def open_up(cache: Cache) -> None:
    cache.module.chmod(0o664)


def give_away(cache: Cache) -> None:
    if os.getuid() != 0:
        pytest.skip("gives files to another user")
    compiled = cache.module.parent / "__pycache__"
    compiled.mkdir()
    os.chown(compiled, SOMEBODY, SOMEBODY)


@pytest.mark.parametrize(
    "tamper", [change, add, add_compiled, add_link, link_away, open_up, give_away]
)
def test_code_that_is_not_what_was_sent_is_laid_out_anew(
    cache: Cache, tamper: Callable[[Cache], None]
) -> None:
    assert cache.have()["ready"] == str(cache.module.parents[1])
    tamper(cache)
    assert "ready" not in cache.have()
    assert cache.laid_out() == cache.module.parents[1]
    found = [p for p in cache.module.parents[1].rglob("*") if not p.is_dir()]
    assert found == [cache.module] and cache.module.read_bytes() == GOOD
    assert "ready" in cache.have()


@pytest.mark.parametrize("blob", ["module", "manifest"])
def test_a_blob_that_was_changed_is_asked_for_again(cache: Cache, blob: str) -> None:
    content = GOOD if blob == "module" else cache.content
    path = cache.store.path(digest_of(content))
    path.chmod(0o600)
    path.write_bytes(content.replace(b"good", b"evil").replace(b"pack", b"hack"))
    change(cache)
    answer = cache.have()
    assert answer.get("missing") == [(0, 0)] or answer.get("manifest_offset") == 0
    cache.send(content)
    assert cache.laid_out() and cache.module.read_bytes() == GOOD


def test_nothing_is_laid_out_from_a_changed_blob(cache: Cache) -> None:
    path = cache.store.path(digest_of(GOOD))
    path.chmod(0o600)
    path.write_bytes(EVIL)
    change(cache)
    cache.store._checked.clear()
    with pytest.raises(RequestProblem, match="is damaged"):
        cache.laid_out()


def test_an_environment_that_others_could_write_to_is_made_anew(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    def make(agent: Any, request: Any, folder: Path) -> None:
        made.append(folder)
        (folder / "bin").mkdir(parents=True)
        (folder / "bin" / "python").write_text("")

    monkeypatch.setattr(environment, "_make_venv", make)
    words = {"digest": "a" * 64, "python": "python3", "steps": []}
    for _ in range(2):
        environment.environment(cache.agent, words, b"")
    assert len(made) == 1
    (made[0] / "bin" / "python").chmod(0o775)
    assert environment.environment(cache.agent, words, b"")["made"]
    assert len(made) == 2
