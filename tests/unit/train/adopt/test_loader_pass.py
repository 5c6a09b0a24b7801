"""The order of a pass is that of the script's own sampler, as far as it has an end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, RandomSampler, Sampler, TensorDataset

from phalanx.core.errors import InputError
from phalanx.train.adopt.loader_pass import LoaderDraws, LoaderPass, order_of

DATA = TensorDataset(torch.arange(10))


class Rounds(Sampler[int]):
    """The data again and again; without a length."""

    def __init__(self, rounds: int | None) -> None:
        self.rounds = rounds

    def __iter__(self) -> Iterator[int]:
        done = 0
        while self.rounds is None or done < self.rounds:
            yield from range(10)
            done += 1
            assert done < 100_000, "collected without end"


class Measured(Rounds):
    def __init__(self, rounds: int | None, length: int) -> None:
        super().__init__(rounds)
        self.length = length

    def __len__(self) -> int:
        return self.length


@pytest.mark.parametrize("sampler", [Rounds(None), Measured(None, 10), Measured(None, 2**70)])
def test_a_sampler_without_end_is_refused(sampler: Any) -> None:
    with pytest.raises(InputError, match="may never end") as refused:
        order_of(DataLoader(DATA, batch_size=4, sampler=sampler))
    assert "a sampler that ends" in refused.value.remedy


@pytest.mark.parametrize(
    "sampler", [Rounds(50), Measured(50, 10), Measured(50, 500), Measured(20_000, 200_000)]
)
def test_a_pass_may_be_longer_than_the_data_and_than_its_length(sampler: Any) -> None:
    found = order_of(DataLoader(DATA, batch_size=4, sampler=sampler))
    assert (len(found.order), found.batch) == (10 * sampler.rounds, 4)
    assert found.order[-10:].tolist() == list(range(10))


@pytest.mark.parametrize(
    ("batches", "words"),
    [([], "no batches"), ([[]], "no batches"), ([[1], [2, 3], [4]], "different sizes")],
)
def test_batches_of_no_or_other_sizes(batches: list[list[int]], words: str) -> None:
    with pytest.raises(InputError, match=words):
        order_of(DataLoader(DATA, batch_sampler=batches))


@pytest.mark.parametrize("batches", [[[1, 2], [3, 4], [5]], [torch.tensor([7, 8])], [(3,)]])
def test_batches_of_one_size(batches: Any) -> None:
    found = order_of(DataLoader(DATA, batch_sampler=batches))
    assert found.order.tolist() == [int(i) for batch in batches for i in batch]
    assert found.batch == len(batches[0])


class Eager(Sampler[list[int]]):
    """Draws when it is asked to begin, not when it is asked for the first batch."""

    def __iter__(self) -> Iterator[list[int]]:
        return iter([part.tolist() for part in torch.randperm(10).split(4)])

    def __len__(self) -> int:
        return 3


def _passes(loader: DataLoader[Any], read: Callable[[DataLoader[Any]], list[int]]) -> list[Any]:
    """Three, and a number drawn by the script after each."""
    torch.manual_seed(3)
    return [(read(loader), float(torch.rand(()))) for _ in range(3)]


@pytest.mark.parametrize(
    ("eager", "evaluates"),
    [(True, "never"), (True, "first"), (False, "never"), (False, "first"), (False, "second")],
)
@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize(("processes", "keep"), [(0, False), (1, False), (1, True)])
def test_draws_as_alone(eager: bool, own: bool, processes: int, keep: bool, evaluates: str) -> None:
    """Also where the script itself reads the loader in one of the passes."""
    order: dict[str, Any] = {"batch_sampler": Eager()} if eager else {"batch_size": 4}
    if not eager:
        order["shuffle"] = True

    def made() -> DataLoader[Any]:
        generator = torch.Generator().manual_seed(4) if own else None
        options = {"num_workers": processes, "persistent_workers": keep, "generator": generator}
        return DataLoader(DATA, **order, **options)

    def plain(loader: DataLoader[Any]) -> list[int]:
        return [int(number) for (batch,) in loader for number in batch]

    kept, passes = LoaderDraws(), iter(["first", "second", "third"])

    def adopted(loader: DataLoader[Any]) -> list[int]:
        if next(passes) == evaluates:
            whole = kept.as_alone(loader, lambda: iter(loader))()
            return [int(number) for (batch,) in whole for number in batch]
        drawn = kept.order_of(loader)
        drawn.own.end()
        return drawn.order.tolist()

    assert _passes(made(), adopted) == _passes(made(), plain)


def _made(kind: str, processes: int, generator: torch.Generator) -> DataLoader[Any]:
    options: dict[str, Any] = {"num_workers": processes, "generator": generator}
    if kind == "again":  # its last round is drawn while batches are left
        options["sampler"] = RandomSampler(DATA, num_samples=15, generator=generator)
    elif kind == "replaced":
        options["sampler"] = RandomSampler(DATA, True, num_samples=40, generator=generator)
    else:
        options |= {"shuffle": True, "drop_last": kind == "full"}
    return DataLoader(DATA, batch_size=4, **options)


def _evaluations(loader: DataLoader[Any], at: int, taken: int, batches: Iterable[Any]) -> list[Any]:
    """Goes through ``taken`` of ``batches``, and after ``at`` of them through the same loader."""
    seen = []
    for place, batch in enumerate(batches, 1):
        seen.append(torch.as_tensor(batch).flatten().tolist())
        if place == at:
            seen.append([int(number) for (inner,) in islice(loader, 9) for number in inner])
        if place == taken:
            break
    return seen


def _followed(drawn: LoaderPass) -> Iterator[Tensor]:
    for place, batch in enumerate(drawn.order.split(drawn.batch), 1):
        drawn.own.give(place)
        yield batch
    drawn.own.end()


@pytest.mark.parametrize("kind", ["plain", "full"])
@pytest.mark.parametrize("at", [0, 1, 2])
@pytest.mark.parametrize("taken", [1, 2, 99])
@pytest.mark.parametrize("processes", [0, 1])
def test_evaluating_in_a_pass_draws_as_alone(
    kind: str, at: int, taken: int, processes: int
) -> None:
    def seen(passes: Callable[[DataLoader[Any]], Iterable[Any]]) -> list[Any]:
        torch.manual_seed(3)
        loader = _made(kind, processes, generator := torch.Generator().manual_seed(4))
        found = [_evaluations(loader, at, taken, passes(loader)) for _ in range(3)]
        return [*found, generator.get_state().tolist(), float(torch.rand(()))]

    alone = seen(lambda loader: (batch for (batch,) in loader))
    assert seen(lambda loader: _followed(order_of(loader))) == alone


@pytest.mark.parametrize("kind", ["again", "replaced"])
def test_what_a_loader_draws_late_may_not_be_changed_by_an_evaluation(kind: str) -> None:
    loader = _made(kind, 0, torch.Generator().manual_seed(4))
    with pytest.raises(InputError, match="next batches depend on it"):
        _evaluations(loader, 1, 99, _followed(order_of(loader)))
