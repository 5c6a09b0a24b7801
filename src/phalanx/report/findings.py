"""Findings about one run, a sentence each: the straggler, the shares, the switches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from phalanx.core import words
from phalanx.observe.events.change_words import shares
from phalanx.observe.speedup.causes import LEAST_GAIN
from phalanx.observe.speedup.slow_links import NETWORK
from phalanx.observe.speedup.speedup_words import as_sentence
from phalanx.observe.speedup.straggler import Straggler
from phalanx.observe.summary.summary_fields import BalanceSummary, Summary, SwitchSummary
from phalanx.report.load import RunGroup, StudyData

FEW_SWITCHES = 6


def findings(summary: Summary) -> list[str]:
    """Return all findings, first those that make the result doubtful."""
    found = (
        nonfinite_sentence(summary),
        straggler_sentence(summary),
        balance_sentence(summary),
        worth_sentence(summary),
        switch_sentence(summary),
        lost_sentence(summary),
        unreported_sentence(summary),
    )
    return [sentence for sentence in found if sentence]


def nonfinite_sentence(summary: Summary) -> str | None:
    """Say how many steps were skipped because of numbers that were not finite."""
    count = summary.nonfinite_steps
    if not count or not summary.nonfinite:
        return None
    first = summary.nonfinite[0]
    return (
        f"Not finite: {words.count(count)} step{'s were' if count > 1 else ' was'} skipped, "
        f"{'the first ' if count > 1 else ''}in epoch {first.epoch + 1} ({first.what})."
    )


def lost_sentence(summary: Summary) -> str | None:
    """Say how many samples of lost workers no other worker trained."""
    if not summary.samples_lost:
        return None
    return f"{words.count(summary.samples_lost)} samples of lost workers could not be trained."


def unreported_sentence(summary: Summary) -> str | None:
    """Say which workers' last figures are missing."""
    if not summary.unreported:
        return None
    machines = {worker.rank: worker.machine for worker in summary.per_worker}
    names = ", ".join(f"worker {rank} on {machines.get(rank)}" for rank in summary.unreported)
    return f"The last reports of {names} did not arrive: samples and speeds may be too low."


def straggler_sentence(summary: Summary) -> str | None:
    """Say which worker was the straggler, and what it cost the others."""
    late = summary.straggler
    if late is None:
        return None
    head = (
        f"Straggler: worker {late.rank}{_place(summary, late)}, {_how_slow(late)}; {_cost(late)}."
    )
    if late.cause == NETWORK:
        head = f"Straggler: the network of {late.machine}; it costs all workers {_lost(late)}."
    return " ".join((head, *_why(late)))


def _why(late: Straggler) -> Iterator[str]:
    """Yield why it is slow, and what would mend that, as far as the figures show it."""
    if late.cause is None:
        return
    yield f"Why: {late.cause} ({'; '.join(late.evidence)})."
    if late.gain is not None and late.gain >= LEAST_GAIN:
        yield f"Without that the run would be about {words.rough_share(late.gain)} faster."
    if late.remedy:
        yield f"To mend it: {late.remedy}."


def _place(summary: Summary, late: Straggler) -> str:
    machines = {worker.rank: worker.machine for worker in summary.per_worker}
    return f" on {machines.get(late.rank)}" if len(set(machines.values())) > 1 else ""


def _how_slow(late: Straggler) -> str:
    told = []
    if late.slower is not None and late.slower >= 1.1:
        told.append(f"{late.slower:.1f} times as long per sample as the others")
    if late.steps:
        told.append(
            f"last in {words.rough_share(late.share)} of {words.count(late.steps)} joint steps"
        )
    return ", ".join(told) or "the slowest"


def _cost(late: Straggler) -> str:
    if late.waiting == "nobody":
        return "no one waits for it under this strategy, so it costs the others nothing"
    lost = _lost(late)
    if late.waiting == "bounded":
        return f"workers that ran too far ahead waited for it ({lost})"
    return f"the others waited for it: {lost}"


def _lost(late: Straggler) -> str:
    return f"{words.seconds(late.seconds)}, {words.rough_share(late.cost)} of their time"


def balance_sentence(summary: Summary) -> str | None:
    """Say which shares followed the measured speeds, and with what effect."""
    balance = summary.balance
    if balance is None:
        return None
    refused = _refused(balance)
    if not summary.shares:
        return f"Balance: equal shares; {refused}." if refused else None
    often = "once" if balance.changes == 1 else f"{balance.changes} times"
    last = f"last in epoch {balance.last_epoch + 1}" if balance.changes > 1 else ""
    when = f"{often}, {last}" if last else f"{often}, in epoch {balance.first_epoch + 1}"
    told = f"Balance: shares {shares(summary.shares)} by measured speed, changed {when}"
    before, after = balance.rate_before, balance.rate_after
    if before and after:
        told += f"; {words.count(before)} samples/s in steps before, {words.count(after)} after"
    return f"{told}; {refused}." if refused else f"{told}."


def _refused(balance: BalanceSummary) -> str:
    if not balance.refused:
        return ""
    often = "once" if balance.refused == 1 else f"{balance.refused} times"
    told = f"other shares were tried {often} and reverted, because they were not clearly faster"
    before, after = balance.rate_before, balance.rate_after
    if balance.changes or not before or not after:
        return told
    return f"{told} ({words.count(after)} samples/s in steps instead of {words.count(before)})"


def worth_sentence(summary: Summary) -> str | None:
    """Say whether fewer machines, or balance, would have been faster, from measured figures."""
    worth = summary.worth
    if worth is None or worth.advice is None or summary.status == "failed":
        return None  # after a failure, a machine that the advice counts on may be lost
    return f"Worth it? {as_sentence(worth, worth.advice)}."


def switch_sentence(summary: Summary) -> str | None:
    """Say how much was trained under each strategy, if there was more than one."""
    switches = summary.switches
    if not switches:
        return None
    parts = summary.samples_by_phase
    total = sum(parts.values())
    often = "once" if len(switches) == 1 else f"{len(switches)} times"
    longest = max(switch.pause_seconds for switch in switches)
    pause = f"paused {words.seconds(longest)}" + (" at most" if len(switches) > 1 else "")
    if total <= 0:
        return f"Switched {often}, {pause}."
    under = [f"{words.rough_share(part / total)} under {name}" for name, part in parts.items()]
    return f"Switched {often}, {pause}: {words.listed(under)}."


def of_group(group: RunGroup, study: StudyData, sentence: str | None) -> str:
    """Put the strategy's label before the sentence, if there are several strategies."""
    if not sentence or len(study.groups) == 1:
        return sentence or ""
    return f"{group.label}: {sentence[0].lower()}{sentence[1:]}"


def shown_switches(switches: Sequence[SwitchSummary]) -> tuple[list[SwitchSummary], int]:
    """Return the first and last few switches, and how many are between them."""
    if len(switches) <= FEW_SWITCHES:
        return list(switches), 0
    half = FEW_SWITCHES // 2
    return [*switches[:half], *switches[-half:]], len(switches) - 2 * half
