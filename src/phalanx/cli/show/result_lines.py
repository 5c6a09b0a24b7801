"""The results of a run or a study on the terminal: table, verdict, and the report's path."""

from __future__ import annotations

from pathlib import Path

from phalanx.cli.output import Output
from phalanx.core.errors import InputError
from phalanx.core.files import cache_home
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.core.settings import mark
from phalanx.core.terminal import printable
from phalanx.core.words import count, loss, rough_share, seconds, share
from phalanx.observe.summary.summary_fields import Summary
from phalanx.report.html import write_report
from phalanx.report.load import load_study
from phalanx.report.sections.operators import operator_grids, profiled
from phalanx.report.study_verdict import verdict_on
from phalanx.report.tables import TableCell, TableRow, print_rows, print_table


def tell_study(paths: RunPaths, out: Output) -> Path:
    """Print table and verdict, write ``report.html``, and say where it is."""
    tell_results(paths, out)
    report = write_report(paths)
    out.say(f"report  {report}")
    return report


def tell_results(paths: RunPaths, out: Output) -> None:
    """Print table and verdict; this is quick, because nothing is drawn."""
    study = load_study(paths)
    verdict = verdict_on(study)
    out.say()
    print_table(study, out.human)
    out.say()
    out.human.print(printable(verdict.sentence), style="bold", soft_wrap=False)
    for remark in verdict.remarks:
        out.human.print(printable(remark), soft_wrap=False)
    out.say()


def tell_profiles(paths: RunPaths, out: Output) -> None:
    """Print the operators of profiled runs side by side."""
    found = profiled(load_study(paths))
    if not found:
        raise InputError(
            f"no run of {paths.id} has a profile",
            "Run with --profile, for more steps than those that come first.",
        )
    for grid in operator_grids(found):
        cells = [tuple(TableCell(str(cell)) for cell in row) for row in grid.rows]
        lines = [TableRow(row[0].text, row[1:]) for row in cells]
        print_rows(list(grid.head[1:]), lines, out.human, grid.head[0])
        out.say()


FAR_OFF = 0.3
"""After a prediction that is off by more than this share, measuring again is advised."""


def beside_prediction(summary: Summary) -> list[str]:
    """Return lines that compare the predicted and the actual time of a finished run."""
    predicted, took = summary.predicted, summary.seconds
    expected, low, high = (predicted.get(n) for n in ("seconds", "seconds_low", "seconds_high"))
    if summary.status != "done" or not expected or not low or not high or not took:
        return []
    said = [
        f"predicted {seconds(expected)} ({seconds(low)} to {seconds(high)}), took {seconds(took)}"
    ]
    off = took / expected - 1.0
    if abs(off) > FAR_OFF:
        word = "longer" if off > 0 else "shorter"
        again = f"phalanx pool probe for links; empty {cache_home() / 'profiles'} for steps"
        said.append(f"{rough_share(abs(off))} {word} than predicted: measure again ({again})")
    return said


def describe(summary: Summary) -> str:
    """Return one line about how a run ended."""
    parts = [f"{summary.status}: {summary.strategy}"]
    if summary.emulated:
        parts.append(f"{mark(summary.emulated)} ({summary.emulated})")
    if summary.test_accuracy is not None:
        parts.append(f"test accuracy {share(summary.test_accuracy)}")
    elif summary.train_loss is not None:
        parts.append(f"train loss {loss(summary.train_loss)}")
    parts.append(seconds(summary.seconds))
    if summary.samples_per_second is not None:
        parts.append(f"{count(summary.samples_per_second)} samples/s")
    return " · ".join(parts)
