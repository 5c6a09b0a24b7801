"""The verdict on a study: the comparison of its finished runs, and what is odd about them."""

from __future__ import annotations

from dataclasses import replace

from phalanx.observe.run_status import DONE
from phalanx.observe.summary import Summary
from phalanx.report import words
from phalanx.report.compare import Verdict, competitors, decide
from phalanx.report.load import RunData, StudyData, train_seconds
from phalanx.report.quality import Quality, quality_of


def verdict_on(study: StudyData) -> Verdict:
    """The verdict on a study, with whatever makes its runs unlike each other."""
    quality = quality_of([run.summary for run in study.runs])
    if len(study.runs) == 1 and not study.missing:
        return Verdict(outcome_of(study.runs[0].summary, quality))
    verdict = decide(competitors(study, quality), quality)
    remarks = [*verdict.remarks, *unfinished(study), *unequal_work(study)]
    return replace(verdict, remarks=tuple(remarks))


def outcome_of(summary: Summary, quality: Quality) -> str:
    """One run, in one sentence."""
    many = f" with {summary.workers} workers" if (summary.workers or 0) > 1 else ""
    who = f"{summary.strategy or 'The run'}{many}"
    seconds, score = train_seconds(summary), quality.get(summary)
    reached = f" and reached {quality.say(score)}" if score is not None else ""
    if not summary.epochs or seconds is None:
        return f"{who} {_ENDED.get(summary.status, 'ended')} before the end of its first epoch."
    epochs = f"{summary.epochs} epoch{'' if summary.epochs == 1 else 's'}"
    if summary.status == DONE:
        return f"{who} trained {epochs} in {words.seconds(seconds)}{reached}."
    ended = _ENDED.get(summary.status, "ended")
    return f"{who} {ended} after {epochs} ({words.seconds(seconds)}){reached}."


_ENDED = {
    "running": "is still running,",
    "failed": "failed",
    "stopped": "was stopped",
    "lost": "was lost (its controller ended without a word)",
}


def unfinished(study: StudyData) -> list[str]:
    """Which runs have no result, and why, as far as it is known."""
    told = [
        f"{group.label} ({': '.join(_why(run, study))})"
        for group in study.groups
        for run in group.runs
        if not run.done
    ]
    told += [f"{name} (its folder is gone)" for name in study.missing]
    total = len(study.runs) + len(study.missing)
    return [f"Not finished: {len(told)} of {total}: {words.listed(told)}."] if told else []


def _why(run: RunData, study: StudyData) -> list[str]:
    cause = study.failures.get(run.paths.id)
    return [run.summary.status, *([cause] if cause else [])]


def unequal_work(study: StudyData) -> list[str]:
    """Times of runs that saw unlike numbers of samples are not times of the same work."""
    samples = [run.summary.samples for run in study.runs if run.done and run.summary.samples]
    if not samples or max(samples) <= 1.01 * min(samples):
        return []
    few, many = words.count(min(samples)), words.count(max(samples))
    return [f"The runs are of unequal length: they saw from {few} to {many} samples."]
