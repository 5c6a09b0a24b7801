"""Summarise the steps of a run: how their time was spent, and each worker's part."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from statistics import fmean, median

from phalanx.observe.events.strategy_phases import PhaseSteps
from phalanx.observe.events.timeline import RankLog
from phalanx.observe.speedup.straggler import ENOUGH_STEPS, find_straggler, find_waits
from phalanx.observe.summary.summary_fields import BalanceSummary, Summary, TimeSplit, WorkerSummary


def add_steps(summary: Summary, ranks: Sequence[RankLog], phases: Sequence[PhaseSteps]) -> None:
    """Add how the steps' time was spent, and for which worker the others waited."""
    active = [log.rows for log in ranks if log.steps]
    summary.per_worker = [_worker(log) for log in ranks]
    if not active:
        return
    summary.time = TimeSplit(
        input=fmean(sum(s.input for s in rows) for rows in active),
        compute=fmean(sum(s.compute for s in rows) for rows in active),
        communicate=fmean(sum(s.send + s.reduce for s in rows) for rows in active),
        wait=fmean(sum(s.wait + s.settle for s in rows) for rows in active),
        update=fmean(sum(s.update for s in rows) for rows in active),
    )
    # Of the workers of a machine, one exchanges with the other machines.
    if beside := [total for rows in active if (total := sum(s.hidden for s in rows))]:
        summary.time.hidden = fmean(beside)
    summary.step_seconds = median(step.seconds for log in ranks for step in log.steps)
    for phase in phases:
        samples = sum(step.samples for steps in phase.steps for step in steps)
        known = summary.samples_by_phase.get(phase.name, 0)
        summary.samples_by_phase[phase.name] = known + samples
    free = [phase for phase in phases if not phase.lockstep]
    counts = Counter(step.staleness for phase in free for steps in phase.steps for step in steps)
    summary.staleness = dict(sorted(counts.items()))
    balanced = next((log.balanced[0].time for log in ranks if log.balanced), None)
    summary.straggler = find_straggler(phases, balanced)
    machines = {log.rank: log.joined.machine if log.joined else "" for log in ranks}
    summary.waits = find_waits(phases, machines)


def add_shares(summary: Summary, ranks: Sequence[RankLog]) -> None:
    """Add the batch shares that followed the measured speeds."""
    log = next((log for log in ranks if log.balanced or log.taken_back), None)
    if log is None:
        return
    balanced = log.balanced
    epochs = [event.epoch for event in balanced or log.taken_back]
    summary.balance = BalanceSummary(
        changes=len(balanced),
        refused=len(log.taken_back),
        first_epoch=epochs[0],
        last_epoch=epochs[-1],
    )
    if not balanced:
        last = log.taken_back[-1]
        summary.balance.rate_before = last.rate_before
        summary.balance.rate_after = last.rate_after
        return
    if not any(log.switches for log in ranks):
        summary.balance.rate_before = _rate(ranks, 0.0, balanced[0].time)
        summary.balance.rate_after = _rate(ranks, balanced[-1].time, math.inf)
    summary.shares = list(balanced[-1].shares)
    for worker in summary.per_worker:
        if worker.rank < len(summary.shares):
            worker.share = summary.shares[worker.rank]


def _rate(ranks: Sequence[RankLog], began: float, ended: float) -> float | None:
    """Return all workers' samples a second, from typical steps between two times."""
    rates = []
    for log in ranks:
        steps = [s for s in log.steps if began <= s.began and s.ended <= ended and s.seconds > 0]
        if len(steps) < ENOUGH_STEPS or log.rounds:  # independent steps do not show waiting
            return None
        rates.append(median(step.samples / step.seconds for step in steps))
    return sum(rates)


def add_bytes(summary: Summary, ranks: Sequence[RankLog]) -> None:
    sent = [log.bytes_sent for log in ranks if log.bytes_sent is not None]
    summary.bytes_sent = sum(sent) if sent else None
    steps = sum(len(log.steps) for log in ranks)
    if summary.bytes_sent and steps:
        summary.bytes_per_step = summary.bytes_sent / steps


def _worker(log: RankLog) -> WorkerSummary:
    worker = WorkerSummary(rank=log.rank, steps=len(log.steps))
    if log.joined:
        worker.machine, worker.device = log.joined.machine, log.joined.device
        worker.threads = log.joined.threads
    if log.finished:
        worker.peak_memory_bytes = log.finished.peak_memory or None
    worker.samples = log.samples
    seconds = sum(row.seconds for row in log.rows)
    if log.steps and seconds > 0:
        span = log.phases.get("train") or log.steps[-1].ended - log.steps[0].began
        busy = sum(step.input + step.compute for step in log.steps)
        worker.samples_per_second = worker.samples / span if span > 0 else None
        worker.seconds_per_sample = busy / worker.samples if worker.samples else None
        worker.wait_share = sum(row.wait + row.settle for row in log.rows) / seconds
        worker.mean_staleness = fmean(step.staleness for step in log.steps)
    return worker
