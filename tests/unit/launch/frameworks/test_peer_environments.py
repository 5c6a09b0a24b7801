"""Environments of other systems are run from: whose they are is checked before."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from shipping_support import NearLink

from phalanx.core.errors import InputError
from phalanx.launch.frameworks import peer_environments as peers
from phalanx.launch.frameworks.framework import Framework
from phalanx.launch.shipping.environment import choose_foreign

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


@pytest.mark.parametrize(("part", "ran"), [("", False), ("bin/python", False), (None, True)])
def test_no_machine_runs_what_others_can_have_written(
    made: list[str], tmp_path: Path, part: str | None, ran: bool
) -> None:
    """A machine looks for an environment at the same place before it makes its own."""
    python = peers.python_of(WANTED)
    python.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran; exit 1\n")
    python.chmod(0o755)
    if part is not None:
        place = python.parents[1] / part
        place.chmod(place.stat().st_mode | 0o002)
    choice = asyncio.run(choose_foreign(NearLink(tmp_path / "agent"), WANTED))
    assert (tmp_path / "ran").exists() is ran
    assert choice.recipe is not None, "it has none of the packages, so the machine makes its own"
