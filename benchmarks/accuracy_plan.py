"""What the accuracy tables are made of: models, strategies, seeds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.harness import ROOT
from benchmarks.whole_runs import EQUAL, PLAIN

EXAMPLES = ROOT / "examples"
EXAMPLE_AT = str(ROOT / "benchmarks" / "scripts" / "example_at.py")
STRATEGIES = (
    "single",
    "allreduce",
    "async",
    "ssp:bound=3",
    "dssp",
    "groups:size=2",
    "localsgd:every=8",
    "diloco:every=20",
    "switch:at=0.25",
    "switch:at=0.5",
    "switch:at=0.75",
    "async@0.5/allreduce",
)
CODECS = (
    "allreduce",
    "allreduce+fp16",
    "allreduce+bf16",
    "allreduce+int8",
    "allreduce+int4",
    "allreduce+topk:ratio=0.01",
    "allreduce+powersgd",
)


@dataclass(frozen=True)
class Table:
    """One model as it is trained, and all that is tried on it."""

    name: str
    title: str
    script: tuple[str, ...]
    """The script, and after ``--`` what it is given."""
    epochs: int
    batch: int
    seeds: int
    strategies: tuple[str, ...]

    def words(self, strategy: str, seed: int, workers: int, epochs: int) -> list[str]:
        script, *arguments = self.script
        alone = strategy == "single"
        words = ["run", script, "--strategy", strategy + EQUAL]
        words += ["--workers", str(1 if alone else workers)]
        words += ["--epochs", str(epochs), "--batch", str(self.batch), "--seed", str(seed), *PLAIN]
        return [*words, "--", *arguments] if arguments else words


TABLES = (
    Table(
        "fashion-mlp",
        "Fashion-MNIST MLP (784-128-10), SGD 0.1, batch 128",
        (str(EXAMPLES / "fashion_mlp.py"),),
        5,
        128,
        5,
        STRATEGIES,
    ),
    Table(
        "mnist-cnn",
        "MNIST CNN, SGD 0.001 as published, batch 256",
        (str(EXAMPLES / "mnist_cnn.py"),),
        3,
        256,
        3,
        STRATEGIES,
    ),
    Table(
        "mnist-cnn-0.05",
        "MNIST CNN, SGD 0.05, batch 256",
        (EXAMPLE_AT, "mnist_cnn", "mnist", "0.05"),
        3,
        256,
        3,
        STRATEGIES,
    ),
    Table(
        "mnist-mlp-codecs",
        "MNIST MLP (784-300-100-10), SGD 0.05 with momentum 0.9, batch 128",
        (str(EXAMPLES / "mnist_mlp.py"),),
        5,
        128,
        3,
        CODECS,
    ),
)


@dataclass(frozen=True)
class Trial:
    """One run."""

    table: Table
    strategy: str
    seed: int
    workers: int
    epochs: int

    @property
    def key(self) -> dict[str, object]:
        return {
            "table": self.table.name,
            "strategy": self.strategy,
            "seed": self.seed,
            "workers": 1 if self.strategy == "single" else self.workers,
            "epochs": self.epochs,
        }

    @property
    def words(self) -> list[str]:
        return self.table.words(self.strategy, self.seed, self.workers, self.epochs)


@dataclass(frozen=True)
class Wanted:
    """What the command line asks for; ``None``: as the tables say."""

    workers: int
    only: str | None
    epochs: int | None
    seeds: int | None

    def tables(self) -> list[Table]:
        return [table for table in TABLES if self.only is None or self.only in table.name]

    def trials(self, table: Table, strategy: str) -> list[Trial]:
        seeds, epochs = self.seeds or table.seeds, self.epochs or table.epochs
        return [Trial(table, strategy, seed, self.workers, epochs) for seed in range(seeds)]

    def all(self) -> Iterator[Trial]:
        """Seed by seed, so that what is there early is a table of everything."""
        for table in self.tables():
            rows = [self.trials(table, strategy) for strategy in table.strategies]
            yield from (trial for column in zip(*rows, strict=True) for trial in column)
