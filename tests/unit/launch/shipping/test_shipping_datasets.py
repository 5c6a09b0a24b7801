from __future__ import annotations

import asyncio
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest
from launch_support import make_job, write_script
from shipping_support import NearLink

from phalanx.core import words
from phalanx.core.errors import InputError
from phalanx.core.script.datasets import HOMES, IDX_FILES
from phalanx.launch.launcher import Fleet
from phalanx.launch.shipping.datasets import Datasets, find_datasets
from phalanx.launch.shipping.send import ignore_progress
from phalanx.pool.machine import Machine

LOADS = 'import phalanx\nphalanx.data.load("mnist")\n'


def put(folder: Path) -> int:
    """Some files that have the names of MNIST's; their bytes in all."""
    folder.mkdir(parents=True)
    for number, name in enumerate(IDX_FILES):
        (folder / f"{name}.gz").write_bytes(name.encode() * 1000 * (number + 1))
    (folder / ".checked").write_text("{}")
    return sum(file.stat().st_size for file in folder.glob("*.gz"))


class Place:
    """A computer with a cache of its own, and a machine that has nothing yet."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.cache = folder, folder / "cache"
        self.script = write_script(folder, "", prelude=LOADS)
        self.said: list[str] = []
        self.link = NearLink(folder / "there")
        self.link.machine = Machine(name="m1", host="192.0.2.1", data=str(folder / "data-there"))
        self.link.waiting.say = self.said.append

    def found(self, data: Path | None = None) -> Datasets:
        return find_datasets(
            replace(make_job(self.script, 1), fleet=Fleet(data=data)), self.said.append
        )

    def bring(self, data: Path | None = None) -> Path | None:
        async def send() -> str | None:
            found = self.found(data)
            return (
                await found.send(self.link, ignore_progress)
                if await found.needed(self.link)
                else None
            )

        sent = asyncio.run(send())
        return None if sent is None else Path(sent)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    place = Place(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PHALANX_DATA", str(place.cache))
    monkeypatch.setitem(HOMES, "mnist", ["http://127.0.0.1:1/"])
    return place


def test_what_is_cached_here_goes_there_once(place: Place) -> None:
    size = put(place.cache / "mnist")
    there = place.bring()
    assert there is not None
    names = [f"{name}.gz" for name in IDX_FILES]
    assert sorted(file.name for file in (there / "mnist").iterdir()) == sorted(names)
    for name in names:
        assert (there / "mnist" / name).read_bytes() == (place.cache / "mnist" / name).read_bytes()
    assert place.link.sent > size
    assert place.said == [f"m1: sending mnist ({words.size(size)}) from {place.cache}"]
    place.link.sent = 0
    assert place.bring() == there
    assert place.link.sent == 0 and len(place.said) == 1


def test_a_machine_that_has_it_is_sent_nothing(place: Place) -> None:
    put(place.cache / "mnist")
    put(place.folder / "data-there" / "mnist")
    assert place.bring() is None and place.link.sent == 0 and not place.said


def test_what_nobody_has_is_refused_before_anything_is_sent(place: Place) -> None:
    put(place.cache / "mnist")
    (place.cache / "mnist" / f"{IDX_FILES[2]}.gz").unlink()
    with pytest.raises(InputError, match=r"m1 has no 'mnist', which train\.py loads") as caught:
        place.bring()
    assert "--data DIR" in caught.value.remedy and "\n" not in caught.value.cause
    assert place.link.sent == 0


def test_what_may_not_be_loaded_is_only_mentioned(place: Place) -> None:
    place.script.write_text('import phalanx\nif sys.argv:\n    phalanx.data.load("mnist")\n')
    assert place.bring() is None
    assert "m1 has no 'mnist' and cannot download it" in place.said[0]


def test_a_machine_that_reaches_a_home_downloads_it(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)  # answers 501, as homes may
    thread = Thread(target=home.serve_forever)
    thread.start()
    try:
        address = f"http://127.0.0.1:{home.server_port}/"
        monkeypatch.setitem(HOMES, "mnist", ["http://127.0.0.1:1/", address])
        assert place.bring() is None and place.link.sent == 0
    finally:
        home.shutdown()
        thread.join()
        home.server_close()


@pytest.mark.parametrize("inside", ["", "mnist"])
def test_a_data_folder_that_has_it_wins(place: Place, inside: str) -> None:
    put(place.folder / "given" / inside)
    assert place.bring(place.folder / "given") is None and not place.link.sent


def test_a_data_folder_without_it_does_not_hide_it(place: Place) -> None:
    """The workers look in ``--data``, and not in their machine's own cache."""
    put(place.cache / "mnist")
    put(place.folder / "data-there" / "mnist")
    (place.folder / "given").mkdir()
    there = place.bring(place.folder / "given")
    assert there is not None and (there / "mnist").is_dir()


def test_a_source_of_somebody_else_is_sent_whole(place: Place) -> None:
    place.script.write_text('import phalanx\nphalanx.data.load("mine")\n')
    assert place.bring() is None
    (place.cache / "mine" / "deep").mkdir(parents=True)
    (place.cache / "mine" / "deep" / "rows").write_bytes(b"1,2")
    there = place.bring()
    assert there is not None and (there / "mine" / "deep" / "rows").read_bytes() == b"1,2"


def test_names_that_lead_elsewhere_are_not_looked_for(place: Place) -> None:
    (place.folder / "secret").mkdir()
    (place.folder / "secret" / "key").write_text("x")
    place.script.write_text('import phalanx\nphalanx.data.load("../secret")\n')
    assert place.found().asked == {} and place.bring() is None
