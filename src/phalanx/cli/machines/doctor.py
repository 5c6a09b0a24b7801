"""``phalanx doctor``: whether this machine has what training needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phalanx.cli.output import Output
from phalanx.cli.request import options as o
from phalanx.core.errors import DONE, MACHINE_FAILED

if TYPE_CHECKING:
    from phalanx.cli.machines.doctor_checks import HealthCheck

STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def doctor(json: o.Json = False) -> int:
    """Check this machine, one line each, with remedies."""
    from dataclasses import asdict

    from phalanx.cli.machines.doctor_checks import CHECKS, examine

    out = Output(json)
    findings: list[HealthCheck] = []
    for check in CHECKS:
        findings.append(examine(check))
        _tell(findings[-1], out)
    failed = any(finding.status == "fail" for finding in findings)
    out.result({"ok": not failed, "checks": [asdict(finding) for finding in findings]})
    return MACHINE_FAILED if failed else DONE


def _tell(finding: HealthCheck, out: Output) -> None:
    from rich.text import Text

    line = Text(f"{finding.status:<5}", style=STYLES[finding.status])
    line.append(f"{finding.name:<15}", style="not bold default").append(
        finding.found, style="not bold default"
    )
    out.human.print(line)
    if finding.remedy and finding.status != "ok":
        out.human.print(f"{'':<20}{finding.remedy}")
