"""What a run or a study came to, on the terminal: the table, the sentence, where the report is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from phalanx.core.run_paths import RunPaths

if TYPE_CHECKING:
    from phalanx.cli.output import Output


def tell_study(paths: RunPaths, out: Output) -> Path:
    """Print table and verdict, write ``report.html``, and say where it is."""
    from phalanx.report.html import write_report
    from phalanx.report.load import load_study
    from phalanx.report.tables import print_table
    from phalanx.report.verdict import verdict_on

    study = load_study(paths)
    verdict = verdict_on(study)
    out.say()
    print_table(study, out.human)
    out.say()
    out.human.print(verdict.sentence, style="bold", soft_wrap=False)
    for remark in verdict.remarks:
        out.human.print(remark, soft_wrap=False)
    out.say()
    report = write_report(paths)
    out.say(f"report  {report}")
    return report
