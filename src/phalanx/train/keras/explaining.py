"""``phalanx run --explain`` for Keras: says what ``fit`` was given, and what two workers refuse.

The script ends at its first ``fit``, before anything is trained.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NoReturn

from phalanx.adapters.keras.optimizers import rate_of, rule_of
from phalanx.core.errors import InputError
from phalanx.core.script.explained import Explanation, FoundData, FoundModel, FoundOptimizer
from phalanx.train.keras import setup
from phalanx.train.keras.arrays import FitArguments
from phalanx.train.keras.callbacks import acts_inside, given_callbacks
from phalanx.train.keras.loss_check import check_loss
from phalanx.train.keras.setup import KerasSeeds
from phalanx.train.start.environment import Environment, detect


def explain_fit(model: Any, plain: Callable[..., Any], *args: Any, **kwargs: Any) -> NoReturn:
    model._assert_compile_called("fit")
    asked, environment = FitArguments.of(plain, *args, **kwargs), detect()
    chosen, optimizer = environment.settings, model.optimizer
    given, rate = given_callbacks(asked.callbacks), getattr(optimizer, "_learning_rate", None)
    names = [type(each).__name__ for each in (rate, *given)]
    found = Explanation(
        script=str(getattr(sys.modules["__main__"], "__file__", "")),
        complete=True,
        epochs=chosen.epochs or asked.epochs - asked.initial_epoch,
        schedulers=[name for name in names if "Schedule" in name or "ReduceLR" in name],
        evaluation="of arrays each worker evaluates a part; of other data, all of it",
    )
    try:
        found.differences += _look(found, model, asked, replace(environment, workers=2))
        found.differences += [setup.SEES_A_PART] if any(map(acts_inside, given)) else []
    except InputError as error:
        found.refused.append(error.cause)
    count = model.count_params() if model.built else 0
    found.models = [FoundModel(kind=type(model).__name__, parameters=count)]
    found.optimizers = [FoundOptimizer(kind=type(optimizer).__name__, rate=rate_of(optimizer))]
    assert environment.paths is not None
    found.write(environment.paths.files)
    raise SystemExit(0)


def _look(
    found: Explanation, model: Any, asked: FitArguments, environment: Environment
) -> Iterator[str]:
    """Yield what differs with two workers; raise an error for what they refuse."""
    setup.check_options(environment, model)
    backend = setup.backend_of()
    source = setup.source_of(model, asked, environment, backend, KerasSeeds(model))
    shuffled, kind = bool(asked.shuffle) and not source.weighs, type(asked.x).__name__
    found.data = FoundData(
        kind=kind, samples=len(source.reader), batch=source.batch, batches=source.steps,
        shuffled=shuffled,
    )  # fmt: skip
    note = check_loss(model, source.samples)
    found.loss, mirror = "mean", backend(model)
    rule_of(mirror)
    yield from setup.notes_of(mirror, source, environment.workers)[1:]
    yield from filter(None, [note])
