"""Which view of a batch an adopted script gets, decided before its worker joins."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from torch import nn
from torch.utils.data import DataLoader

from phalanx.core.context import suggest_option
from phalanx.core.settings import RunSettings
from phalanx.train.checkpoint.checkpoint_manifest import read_manifest
from phalanx.train.checkpoint.kept_state import ORDER, WHOLE
from phalanx.train.proof.checks import trains_as_one
from phalanx.train.start.environment import Environment, detect
from phalanx.train.whole.view_trial import ViewTrial, can_be_tried, try_views


class ViewChoice:
    def __init__(self, chosen: RunSettings, workers: int) -> None:
        self._open = chosen.view == "auto"
        asked = chosen.adopt and chosen.view != "parts" and chosen.loss is None
        self.whole = asked and workers > 1 and trains_as_one(chosen)
        """Each worker runs the script on whole batches, and only calls of models are shared out."""
        self.slower: float | None = None
        """How many times as long a step would take in view ``whole``, if that decided it."""
        self.trial: ViewTrial | None = None
        """In the child that tries which view suits the script."""
        self._environment: Environment | None = None
        if self.whole and self._open and chosen.resume is not None:
            self._open = False
            self.whole = _was_whole(Path(chosen.resume))

    def environment(self) -> Environment:
        """Where this worker runs: found out once for each training."""
        found, self._environment = self._environment or detect(), None
        return found

    def choose(
        self,
        loader: DataLoader[Any],
        plain: Callable[[], Iterator[Any]],
        models: Sequence[nn.Module],
        *,
        forkable: bool,
    ) -> Iterator[Any] | None:
        """Collective, before the first training: in a child of a worker its trial. ``forkable``:
        this worker can have a child."""
        if not self.whole or not self._open or not can_be_tried(models, loader):
            return None
        self._open = False
        self._environment = detect()
        if self._environment.arena is None or self._environment.thread:
            return None
        found = try_views(self._environment.arena, models, loader, plain, forkable=forkable)
        if isinstance(found, ViewTrial):
            self.trial = found
            return iter(found)
        self.slower, self.whole = found, found is None
        if found is not None:
            suggest_option("--view whole")
        return None


def _was_whole(checkpoint: Path) -> bool:
    """As the run that is resumed was."""
    kept = read_manifest(checkpoint).other.get("state", {}).get(ORDER, {})
    return bool(kept.get(WHOLE, True))
