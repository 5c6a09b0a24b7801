"""A ``DataLoader`` with ``persistent_workers`` keeps its processes, and its samples."""

from __future__ import annotations

import gc
import multiprocessing
import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import until
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, get_worker_info

from phalanx.agent.system import stat_fields
from phalanx.data.prefetch import prefetch
from phalanx.data.reader import as_reader

WHOLE = torch.arange(12)


class Drawn(Dataset[Any]):
    """A random number for each sample, and the process that made it."""

    def __len__(self) -> int:
        return len(WHOLE)

    def __getitem__(self, index: int) -> tuple[float, int, int]:
        return float(torch.rand(())), os.getpid(), index


def _loader(dataset: Dataset[Any], *, keep: bool = True, processes: int = 2) -> DataLoader[Any]:
    return DataLoader(dataset, batch_size=2, num_workers=processes, persistent_workers=keep)


def _stream(loader: DataLoader[Any], epoch: int, seed: int = 3) -> Any:
    """As in each pass: by a reader of its own, in a thread of its own."""
    return prefetch(as_reader(loader, seed=seed).stream(enumerate(WHOLE.split(2)), epoch))


def _joined(batches: Any) -> tuple[Tensor, set[int]]:
    numbers, makers, samples = (torch.cat(part) for part in zip(*batches, strict=True))
    assert torch.equal(samples, WHOLE)
    return numbers, set(makers.tolist())


def _read(loader: DataLoader[Any], epoch: int, seed: int = 3) -> tuple[Tensor, set[int]]:
    return _joined([batch for _, batch in _stream(loader, epoch, seed)])


@pytest.mark.parametrize("keep", [True, False])
def test_passes_have_the_same_processes_and_random_numbers_of_their_own(keep: bool) -> None:
    loader = _loader(Drawn(), keep=keep)
    first, second, again = _read(loader, 0), _read(loader, 1), _read(loader, 0)
    assert (first[1] == second[1] == again[1]) == keep
    assert torch.equal(first[0], again[0]) and not torch.equal(first[0], second[0])
    assert torch.equal(first[0], as_reader(Drawn(), seed=3).fetch(WHOLE, 0)[0])


def test_a_pass_after_one_that_was_left() -> None:
    loader = _loader(Drawn())
    whole, makers = _read(loader, 0)
    left = _stream(loader, 1)
    next(left)
    left.close()
    assert _read(loader, 0)[1] == makers
    assert torch.equal(_read(loader, 0)[0], whole)


def test_two_passes_at_a_time() -> None:
    loader = _loader(Drawn())
    one, other = _stream(loader, 0), _stream(loader, 1)
    pairs = [(left, right) for (_, left), (_, right) in zip(one, other, strict=True)]
    (first, makers), (second, others) = (_joined(part) for part in zip(*pairs, strict=True))
    assert not makers & others
    assert torch.equal(first, _read(loader, 0)[0]) and torch.equal(second, _read(loader, 1)[0])


def test_a_process_that_is_forked_leaves_them_alone() -> None:
    loader = _loader(Drawn())
    whole, makers = _read(loader, 0)
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    child = context.Process(target=_answer, args=(loader, answers))
    child.start()
    found, others = answers.get()
    child.join(10)
    assert torch.equal(torch.tensor(found), whole) and not makers & others
    assert _read(loader, 0)[1] == makers


def _answer(loader: DataLoader[Any], answers: Any) -> None:
    numbers, makers = _read(loader, 0)
    answers.put((numbers.tolist(), makers))
    os._exit(0)


def test_processes_end_with_their_worker_in_the_midst_of_a_sample(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    worker = context.Process(target=_hang, args=(tmp_path,))
    worker.start()
    until(lambda: len(list(tmp_path.iterdir())) == 1)
    worker.kill()
    worker.join(10)
    (maker,) = (int(path.name) for path in tmp_path.iterdir())
    until(lambda: not stat_fields(maker) or stat_fields(maker)[0] == "Z")


def _hang(folder: Path) -> None:
    next(_stream(_loader(Hanging(folder), processes=1), 0))


class Hanging(Drawn):
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __getitem__(self, index: int) -> tuple[float, int, int]:
        (self._folder / str(os.getpid())).touch()
        time.sleep(60)
        return super().__getitem__(index)


class Opened(Drawn):
    opened = False

    def __getitem__(self, index: int) -> tuple[float, int, int]:
        info = get_worker_info()
        assert self.opened and info is not None and info.dataset is self
        return super().__getitem__(index)


def _open(_: int) -> None:
    info = get_worker_info()
    info.dataset.opened = True


@pytest.mark.parametrize("keep", [True, False])
def test_what_prepares_a_process_finds_the_dataset_of_the_script(keep: bool) -> None:
    loader = DataLoader(Opened(), 2, num_workers=1, persistent_workers=keep, worker_init_fn=_open)
    _read(loader, 0)


def test_processes_end_with_the_loader() -> None:
    loader = _loader(Drawn())
    _, makers = _read(loader, 0)
    assert makers <= {child.pid for child in multiprocessing.active_children()}
    del loader
    gc.collect()
    assert not makers & {child.pid for child in multiprocessing.active_children()}


class Failing(Drawn):
    fails = True

    def __getitem__(self, index: int) -> tuple[float, int, int]:
        if self.fails and index == 5:
            raise ValueError("cannot read sample 5")
        return super().__getitem__(index)


def test_a_pass_after_one_that_failed() -> None:
    dataset = Failing()
    loader = _loader(dataset, processes=1)  # torch may wait seconds for each to end
    with pytest.raises(ValueError, match="cannot read sample 5"):
        _read(loader, 0)
    dataset.fails = False
    _read(loader, 0)
