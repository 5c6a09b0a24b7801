"""A synchronous training on several machines ends with the parameters of one host's."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from commands import phalanx
from trained import assert_same_model
from worker_runs import REPOSITORY, start_workers

from phalanx.core.settings import RunSettings
from phalanx.lab.lab import Lab

DIGITS = str(REPOSITORY / "examples" / "digits.py")
EPOCHS, SEED = 2, 3
ONE_EACH, UNEQUAL, THREE = ["m1", "m2"], ["m1", "m1", "m2"], ["m1", "m2", "m3"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def on_one_host(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], Path]:
    """The folder of a run by ``phalanx run``, of each once."""

    @cache
    def trained(strategy: str, workers: int) -> Path:
        folder = tmp_path_factory.mktemp("one")
        words = ["--strategy", f"{strategy}:shares=equal", "--workers", str(workers)]
        numbers = ["--epochs", str(EPOCHS), "--seed", str(SEED)]
        ended = phalanx("run", DIGITS, *words, *numbers, cwd=folder, OMP_NUM_THREADS="1")
        assert ended.returncode == 0, ended.stderr
        (run,) = (path for path in (folder / "runs").glob("[!.]*") if path.is_dir())
        return run

    return trained


@pytest.mark.parametrize(
    ("strategy", "on"),
    [
        ("allreduce", ONE_EACH),
        ("allreduce", UNEQUAL),
        ("allreduce", THREE),
        ("allreduce", ["m1", "m2", "m2", "m3"]),
        ("allreduce:topology=ring", THREE),
        ("allreduce:topology=tree", THREE),
        ("allreduce:topology=butterfly", THREE),
        ("bsp", ONE_EACH),
        ("bsp", THREE),
        ("bsp", UNEQUAL),
        ("localsgd:every=4", ONE_EACH),
        ("localsgd:every=4", UNEQUAL),
        ("diloco:every=4", THREE),
    ],
)
def test_ends_like_one_host(
    machines: Lab,
    tmp_path: Path,
    on_one_host: Callable[[str, int], Path],
    strategy: str,
    on: list[str],
) -> None:
    """Shares are fixed: those who train apart would else see other samples."""
    settings = RunSettings(strategy=strategy, epochs=EPOCHS, seed=SEED, balance="off")
    given = {"PHALANX_SETTINGS": settings.to_json()}
    with start_workers(machines, tmp_path, [DIGITS], on=on, **given) as workers:
        workers.finish()
        (run,) = workers.runs
    assert_same_model(run, on_one_host(strategy.partition(":topology")[0], len(on)))
