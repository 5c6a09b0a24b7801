"""Environments of other systems are run from: whose they are is checked before."""

from __future__ import annotations

from pathlib import Path

import pytest

from phalanx.core.errors import InputError
from phalanx.launch.frameworks import Framework
from phalanx.launch.frameworks import peer_environments as peers

WANTED = Framework(name="tensorflow", system="tf-ps", requirements=["some-thing==1"])


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Says each time that an environment is made; its file is all that one needs here."""
    said: list[str] = []
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(peers.VARIABLE, raising=False)
    monkeypatch.setitem(peers._MODULES, "tensorflow", ("a_module_that_is_not_there",))

    def call(words: list[str]) -> None:
        if "venv" in words:
            (Path(words[-1]) / "bin").mkdir(parents=True)
            (Path(words[-1]) / "bin" / "python").write_text("ours")

    monkeypatch.setattr(peers, "_call", call)
    peers.environment_for(WANTED, said.append)
    assert len(said) == 1
    return said


@pytest.mark.parametrize("part", ["", "bin", "bin/python"])
def test_what_others_can_have_written_is_made_anew(made: list[str], part: str) -> None:
    python = peers.python_of(WANTED)
    python.write_text("somebody else's")
    place = python.parents[1] / part
    place.chmod(place.stat().st_mode | 0o002)
    assert peers.environment_for(WANTED, made.append) == python
    assert len(made) == 2 and python.read_text() == "ours"
    peers.environment_for(WANTED, made.append)
    assert len(made) == 2, "what is ours is used as it is"


@pytest.mark.parametrize("above", ["peers", "."])
def test_a_cache_that_others_write_to_is_refused(made: list[str], above: str) -> None:
    place = peers.python_of(WANTED).parents[3] / above
    place.chmod(0o777)
    with pytest.raises(InputError, match=r"other users can write to .* programs would be run from"):
        peers.environment_for(WANTED, made.append)
