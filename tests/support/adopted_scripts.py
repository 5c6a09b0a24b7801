"""Ordinary training scripts as text, made from choices: what people write who train alone.

Each leaves what it ended with in ``RESULT``: weights, averages, figures of its evaluations, and
the numbers of the samples that its loop has seen, batch by batch.
"""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

from adopted_parts import (
    CLIPS,
    DATA,
    EVALUATIONS,
    JOINED_CLIPS,
    LOADERS,
    LOSSES,
    OPTIMIZERS,
    SCHEDULES,
    ZEROS,
)


class Loop(SimpleNamespace):
    """What a script does. ``@name`` in its text is ``self.name`` in a class, else ``name``."""

    def but(self, **changes: Any) -> Loop:
        return Loop(**{**vars(self), **changes})

    @property
    def is_sum(self) -> bool:
        return not self.adversarial and self.loss in ("sum", "sum by a constant")

    @property
    def steps_each_batch(self) -> bool:
        often = self.accumulate > 1 or self.losses > 1
        return not often and self.skips == "none" and self.leaves_at == 99

    @property
    def compares(self) -> bool:
        """Whether several workers can end where one does: dropout is each worker's own."""
        return not self.dropout


def loop_of(seed: int) -> Loop:
    """Choices that go together. By a seed, so that no two are nearly the same."""
    chance = random.Random(seed)

    def one(*values: Any) -> Any:
        return chance.choice(values)

    batch, adversarial = one(5, 8, 8, 11), one(*[False] * 6, True)
    samples = one(chance.randint(17, 45), batch * one(2, 3, 4), batch * one(2, 3) + 1)
    accumulate = one(1, 1, 1, 2, 3)
    branch = "none" if adversarial else one("none", "none", "none", "unfrozen", "within", "added")
    closure = accumulate == 1 and not adversarial and one(False, False, False, False, True)
    evaluates = one("none", "epoch", "epoch", "every")
    schedule = one("none", "none", *SCHEDULES)
    if schedule == "plateau":
        evaluates = "epoch"
    if branch == "added" and schedule in ("onecycle", "cosine", "lambda"):
        schedule = "step"  # the others count the groups when they are made
    loss = one("mse", "mse", "cross", *LOSSES)
    trainings = 1 if adversarial else one(1, 1, 1, 2)
    if trainings == 2 and schedule == "onecycle":
        schedule = "cosine"  # that one ends with the first training
    return Loop(
        seed=seed,
        frame=one("module", "main", "functions", "trainer"),
        samples=samples,
        batch=batch,
        epochs=one(2, 2, 3),
        data=one(*DATA),
        loader=one("shuffled", "shuffled", "shuffled", *LOADERS),
        drop_last=one(False, False, True),
        # How the loop goes through its loader.
        through=one("enumerate", "enumerate", "zip", "plain", "next", "islice"),
        optimizer=one(*(kind for kind in OPTIMIZERS if branch != "added" or kind != "adagrad")),
        groups=one(1, 1, 2),
        # A layer that is frozen at first, and how it comes to be trained.
        branch=branch,
        loss=loss,
        accumulate=accumulate,
        # A sum that is divided by as many as a worker has samples cannot be told from a mean.
        divided=loss not in ("sum", "sum by a constant", "weighted mean")
        and one(True, True, False),
        # Batches after the last whole accumulation: in the loop, after it, dropped, kept.
        leftover=one("inside", "after", "drop", "keep"),
        zero="top" if closure else one(*ZEROS),
        clip="none" if closure else one("none", "none", *CLIPS),
        closure=closure,
        schedule=schedule,
        evaluates=evaluates,
        evaluation=one(*EVALUATIONS),
        # The loader of evaluations: plain, shuffled, or that of the training itself.
        validation=one("plain", "plain", "shuffled", "training"),
        leaves_at=one(99, 99, 99, 0, 1, 2),
        skips="none" if closure else one("none", "none", "none", "second", "last"),
        average=one("none", "none", "by hand", "averaged"),
        saves=one(False, False, True),
        # Whether the weights with the best figure are put back at the end.
        best=evaluates == "epoch" and one(False, True),
        reseeds=one(False, False, True),
        peeks=one(False, False, True),
        logs=one(True, False),
        dropout=one(*[False] * 9, True),
        # Whether weights are clamped after each step.
        bounded=one(*[False] * 7, True),
        trainings=trainings,
        # A second training: with a new optimizer, or with the same one.
        again=one("new", "same"),
        # Two models with an optimizer each, which step in turn.
        adversarial=adversarial,
        **NOT_JOINED,
    )


NOT_JOINED: dict[str, Any] = {
    # What the losses of a script that joins are given to: "run.backward", or their own "backward".
    "joined": "",
    # Whether its evaluations are asked of the run.
    "asks": False,
    # Backward passes of a batch.
    "losses": 1,
    # Gradients are clipped after each of them, not only before a step.
    "clips_each": False,
    # How a GradScaler steps, if there is one: "run" or "plain".
    "scaled": "",
    # Whether its schedule is made before it joins.
    "early_schedule": False,
    # How often it is stepped, unless once an epoch: by "step" or "batch".
    "per": "step",
    # Whether the first worker alone saves.
    "first_saves": False,
}


def joined_loop_of(seed: int) -> Loop:
    """A script that joins by itself, and does more than others with its gradients."""
    chance = random.Random(seed + 1)

    def one(*values: Any) -> Any:
        return chance.choice(values)

    plain = loop_of(seed)
    branch = plain.branch
    if not plain.adversarial:
        branch = one(branch, branch, "odd", "frozen again", "added within")
        if branch.startswith("added") and plain.schedule in ("onecycle", "cosine", "lambda"):
            branch = "within"
    scaled = one("", "", "", "run", "plain")
    clip = one("none", "none", *JOINED_CLIPS)
    return plain.but(
        joined=one("run.backward", "backward"),
        asks=one(False, True),
        loader=one("shuffled", "shuffled", "in order"),
        through=one("enumerate", "zip", "plain"),
        branch=branch,
        optimizer="adam" if branch.startswith("added") else plain.optimizer,
        losses=one(1, 1, 2),
        # A step of the run drops gradients itself.
        zero=one(*ZEROS) if scaled == "plain" else one("never", *ZEROS),
        clip="norm" if clip == "in the step" and scaled == "plain" else clip,
        clips_each=not scaled and clip in ("norm", "own", "look") and one(False, True),
        scaled=scaled,
        early_schedule=not branch.startswith("added") and one(False, True),
        per=one("step", "batch"),
        first_saves=one(False, True),
        # Its own loader would draw an order, and leave out what comes last.
        validation="plain" if plain.validation == "training" else plain.validation,
        trainings=1,
        adversarial=False,
        closure=False,
        skips="none",
        leaves_at=99,
        reseeds=False,
        peeks=False,
        dropout=False,
        bounded=False,
    )


def short_loop(**changes: Any) -> Loop:
    """The shortest script that joins, but for what is asked for."""
    plain = joined_loop_of(0).but(**NOT_JOINED).but(
        joined="run.backward", frame="module", samples=43, batch=8, epochs=2,
        data="tensors", loader="shuffled", drop_last=False, through="plain", optimizer="momentum",
        groups=1, branch="none", loss="mse", accumulate=1, zero="never", clip="none",
        schedule="none", evaluates="none", average="none", saves=False, best=False,
    )  # fmt: skip
    return plain.but(**changes)
