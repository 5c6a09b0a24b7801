"""The verdict on a study: the comparison of its finished runs, and remarks on them."""

from __future__ import annotations

from dataclasses import replace

from phalanx.core import words
from phalanx.core.settings import mark
from phalanx.observe.summary.run_status import DONE
from phalanx.observe.summary.summary import Summary
from phalanx.report import agreement
from phalanx.report.comparison import ComparisonVerdict, decide
from phalanx.report.load import RunData, StudyData, train_seconds
from phalanx.report.quality import Quality, quality_of
from phalanx.report.ranking import competitors


def verdict_on(study: StudyData) -> ComparisonVerdict:
    """Return the verdict on a study, with remarks on all that makes its runs unlike each other."""
    quality = quality_of([run.summary for run in study.runs])
    if len(study.runs) == 1 and not study.missing:
        return ComparisonVerdict(
            outcome_of(study.runs[0].summary, quality),
            remarks=(*gone_on(study.runs[0].summary), *conditions(study)),
        )
    verdict = decide(competitors(study, quality), quality)
    remarks = [*verdict.remarks, *agreement.remarks(study.groups), *unfinished(study)]
    remarks += [*unequal_work(study), *conditions(study)]
    return replace(verdict, remarks=tuple(remarks))


def outcome_of(summary: Summary, quality: Quality) -> str:
    """Describe one run in one sentence."""
    many = f" with {summary.workers} workers" if (summary.workers or 0) > 1 else ""
    emulated = f" ({mark(summary.emulated)})" if summary.emulated else ""
    who = f"{summary.strategy or 'The run'}{emulated}{many}"
    seconds, score = train_seconds(summary), quality.get(summary)
    reached = f" and reached {quality.say(score)}" if score is not None else ""
    if summary.status == DONE and not summary.epochs:
        return f"{who} ran to its end in {words.seconds(summary.seconds)}; it reported no epochs."
    if not summary.epochs or seconds is None:
        return f"{who} {_ENDED.get(summary.status, 'ended')} before the end of its first epoch."
    more = " more" if summary.resumes else ""
    epochs = f"{summary.epochs}{more} epoch{'' if summary.epochs == 1 else 's'}"
    if summary.status == DONE:
        return f"{who} trained {epochs} in {words.seconds(seconds)}{reached}."
    ended = _ENDED.get(summary.status, "ended")
    return f"{who} {ended} after {epochs} ({words.seconds(seconds)}){reached}."


_ENDED = {
    "running": "is still running,",
    "failed": "failed",
    "stopped": "was stopped",
    "lost": "was lost (its controller ended unexpectedly)",
}


BUSY_PERCENT = 20.0
"""Percent of all cores; if other programs use more, the run's times are uncertain."""


def gone_on(summary: Summary) -> list[str]:
    """Say what a resumed run continues."""
    if not summary.resumes:
        return []
    before = sum(1 for row in summary.history if row.get("earlier"))
    epochs = f"{before} epoch{'' if before == 1 else 's'}"
    told = f"; {epochs} of the history are from before it" if before else ""
    return [f"Resumed from {summary.resumes}{told}."]


_EMULATED = "Emulated: {}. The times are those of slowed workers and links, not of this machine."
_SIMULATED = (
    "Simulated: all times are virtual, those of a simulated cluster. Losses and "
    "accuracies are real."
)


def conditions(study: StudyData) -> list[str]:
    """Say what differed from an undisturbed machine: emulation, virtual time, other work."""
    kinds = dict.fromkeys(g.emulated for g in study.groups if g.emulated)
    told = [_SIMULATED if mark(k) == "simulated" else _EMULATED.format(k) for k in kinds]
    told = list(dict.fromkeys(told))
    inprocess = [run for run in study.runs if run.launch.launcher == "inprocess"]
    if any(not run.summary.simulated for run in inprocess):
        told.append("The workers were threads that took turns: the times say nothing about speed.")
    return [*told, *_busy(study)]


def _busy(study: StudyData) -> list[str]:
    uses = [
        [m.other_cpu_percent for m in run.summary.machines if m.other_cpu_percent is not None]
        for run in study.runs
    ]
    busy = [max(use) for use in uses if use and max(use) >= BUSY_PERCENT]
    if not busy:
        return []
    while_ = "during this run" if len(study.runs) == 1 else f"in {len(busy)} of {len(uses)} runs"
    most = f"{max(busy):.0f} % of the cores"
    return [
        f"The machine was busy with other work {while_} (up to {most}): times are less certain."
    ]


def unfinished(study: StudyData) -> list[str]:
    """Say which runs have no result, and why, as far as this is known."""
    told = [
        f"{group.label} ({': '.join(_why(run, study))})"
        for group in study.groups
        for run in group.runs
        if not run.done
    ]
    told += [f"{name} (its folder was removed)" for name in study.missing]
    total = len(study.runs) + len(study.missing)
    return [f"Not finished: {len(told)} of {total}: {words.listed(told)}."] if told else []


def _why(run: RunData, study: StudyData) -> list[str]:
    cause = study.failures.get(run.paths.id)
    return [run.summary.status, *([cause] if cause else [])]


def unequal_work(study: StudyData) -> list[str]:
    """Say if runs saw different numbers of samples, so that their times are not comparable."""
    samples = [run.summary.samples for run in study.runs if run.done and run.summary.samples]
    if not samples or max(samples) <= 1.01 * min(samples):
        return []
    few, many = words.count(min(samples)), words.count(max(samples))
    return [f"The runs are of unequal length: they saw from {few} to {many} samples."]
