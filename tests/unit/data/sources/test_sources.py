"""Ready-made data by name, and where a source looks for its files."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

from phalanx.core.context import WorkerContext, enter
from phalanx.core.errors import InputError
from phalanx.core.registry import did_you_mean
from phalanx.core.settings import SETTINGS, RunSettings
from phalanx.data import load
from phalanx.data.load import LOADED, SOURCES, data_folder


def test_digits_come_with_the_package_and_are_split_once_and_for_all() -> None:
    train, test = load("digits")
    assert train.x.shape == (1500, 1, 8, 8) and test.x.shape == (297, 1, 8, 8)
    assert train.x.dtype == torch.float32 and train.y.dtype == torch.int64
    assert float(train.x.min()) == 0 and float(train.x.max()) == 1
    assert sorted(train.y.unique().tolist()) == list(range(10))
    assert train.y[:8].tolist() == load("digits").train.y[:8].tolist()
    whole = torch.cat([train.x, test.x]).flatten(1)
    assert len(whole.unique(dim=0)) == 1797  # no image is in both parts


def test_load_records_what_was_read() -> None:
    before = len(LOADED)
    load("digits")
    record = LOADED[before]
    assert (record.name, record.samples) == ("digits", 1797)
    assert record.thread == threading.get_ident() and record.seconds >= 0
    assert all(len(checksum) == 64 for checksum in record.checksums.values())


def test_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(InputError, match="unknown data source 'mnits'") as caught:
        load("mnits")
    assert caught.value.remedy == did_you_mean("mnits", SOURCES.names())


def test_the_folder_of_a_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SETTINGS, raising=False)
    monkeypatch.delenv("PHALANX_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert data_folder("mnist") == tmp_path / "cache/phalanx/datasets/mnist"
    monkeypatch.setenv("PHALANX_DATA", str(tmp_path / "data"))
    assert data_folder("mnist") == tmp_path / "data/mnist"
    monkeypatch.setenv(SETTINGS, RunSettings(data=str(tmp_path)).to_json())
    assert data_folder("mnist") == tmp_path
    (tmp_path / "kmnist").mkdir()
    assert data_folder("kmnist") == tmp_path / "kmnist"
    assert data_folder("mnist", Path("/elsewhere")) == Path("/elsewhere")


def test_a_worker_thread_has_its_own_data_folder(tmp_path: Path) -> None:
    found: list[Path] = []

    def worker() -> None:
        settings = RunSettings(data=str(tmp_path)).to_json()
        enter(WorkerContext(environment={SETTINGS: settings}, hub=None))
        found.append(data_folder("mnist"))

    thread = threading.Thread(target=worker)
    thread.start()
    thread.join()
    assert found == [tmp_path]


def test_a_published_set_is_read_by_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SOURCES, "_entries", {})  # an example may have added its own
    with pytest.raises(InputError, match="does not read 'mnist' itself") as caught:
        load("mnist")
    assert "torchvision" in caught.value.remedy and "--data" in caught.value.remedy
