"""Shares batch-norm statistics and other buffers, which are part of the state, among workers.

Running averages are linear, so averaging them only when they are read (evaluation, the end) gives
the same as averaging them in every step. Each worker's buffers lie in memory that all can
read; integers, and whatever is not a batch-norm statistic, come from the first worker.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from phalanx.sync.arena.arena import Arena

AVERAGED = ("running_mean", "running_var")


def _joined(buffers: Sequence[Tensor]) -> Tensor:
    """Join the buffers on their device: one copy to the host then waits for it only once."""
    return torch.cat([b.detach().reshape(-1) for b in buffers])


class SharedBuffers:
    """The buffers of all models, one row per worker."""

    def __init__(self, arena: Arena, models: Sequence[nn.Module], policy: str = "auto") -> None:
        self._arena = arena
        everything = list({id(b): b for model in models for b in model.buffers()}.values())
        norms = (m for model in models for m in model.modules() if hasattr(m, "running_mean"))
        found = (getattr(m, name, None) for m in norms for name in AVERAGED)
        averaged = {id(b) for b in found if isinstance(b, Tensor) and b.is_floating_point()}
        if policy == "average":
            averaged = {id(b) for b in everything if b.is_floating_point()}
        elif policy == "first":
            averaged = set()
        self._average = [b for b in everything if id(b) in averaged]
        self._first = [b for b in everything if id(b) not in averaged]
        width = sum(b.numel() for b in self._average)
        # The last number of a row counts the samples of its averages, so that both travel together.
        table = arena.region("buffers", arena.workers * (width + 1), torch.float64)
        self._table = table.view(arena.workers, width + 1)
        self._rows = self._table[:, :width]
        self._firsts = [
            arena.region(f"buffer.{i}", b.numel(), b.dtype) for i, b in enumerate(self._first)
        ]
        pairs = list(zip(self._firsts, self._first, strict=True))
        types = {b.dtype for b in self._first}
        self._first_by_type = [[p for p in pairs if p[1].dtype == t] for t in types]
        self.samples = 0.0
        """Samples in this worker's statistics since all workers had the same."""
        self.any = bool(everything)
        self.publish()
        arena.barrier()
        self.load(self._rows[0], self._firsts)  # start from the first worker's, as the weights do
        arena.barrier()

    def forget_counts(self) -> None:
        """Start counting samples anew, because all workers now have the same average."""
        self.samples = 0.0
        self._table[self._arena.rank, -1] = 0.0

    def export_counts(self) -> dict[str, Tensor]:
        return {"seen": torch.tensor([self.samples], dtype=torch.float64)}

    def import_counts(self, state: dict[str, Tensor]) -> None:
        if "seen" in state:
            self.samples = float(state["seen"])

    def publish(self) -> None:
        """Show this worker's buffers to the others."""
        if self._average:
            self._rows[self._arena.rank].copy_(_joined(self._average))
            self._table[self._arena.rank, -1] = self.samples
        if self._arena.rank == 0:
            for members in self._first_by_type:
                regions, buffers = zip(*members, strict=True)
                sizes = [region.numel() for region in regions]
                torch._foreach_copy_(list(regions), list(_joined(buffers).cpu().split(sizes)))

    def read(self) -> tuple[Tensor, list[Tensor]]:
        """Return the averages, weighted by samples, and the other buffers of the first worker."""
        weights = self._table[:, -1].clone()
        if not bool(weights.sum() > 0):
            weights.fill_(1.0)
        return (weights / weights.sum()) @ self._rows, [r.clone() for r in self._firsts]

    def save(self) -> list[Tensor]:
        return [b.detach().clone() for b in (*self._average, *self._first)]

    def restore(self, saved: list[Tensor]) -> None:
        for buffer, value in zip((*self._average, *self._first), saved, strict=True):
            buffer.copy_(value)

    def load(self, averages: Tensor, firsts: list[Tensor]) -> None:
        sizes = [b.numel() for b in self._average]
        for buffer, part in zip(self._average, averages.split(sizes) if sizes else (), strict=True):
            buffer.copy_(part.reshape(buffer.shape))
        for buffer, value in zip(self._first, firsts, strict=True):
            buffer.copy_(value.reshape(buffer.shape))
