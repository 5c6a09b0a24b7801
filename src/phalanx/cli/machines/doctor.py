"""``phalanx doctor``: check that this machine can train."""

from __future__ import annotations

from phalanx.cli.output import Output
from phalanx.cli.request import options as o
from phalanx.core.errors import DONE, MACHINE_FAILED

STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def doctor(json: o.Json = False) -> int:
    """Check this machine, one line each, with remedies."""
    from dataclasses import asdict

    from rich.text import Text

    from phalanx.cli.machines.doctor_checks import CHECKS, examine

    out = Output(json)
    findings = []
    for check in CHECKS:
        found = examine(check)
        findings.append(found)
        line = Text(f"{found.status:<5}", style=STYLES[found.status])
        line.append(f"{found.name:<15}{found.found}", style="not bold default")
        out.human.print(line)
        if found.remedy and found.status != "ok":
            out.human.print(f"{'':<20}{found.remedy}")
    failed = any(finding.status == "fail" for finding in findings)
    out.result({"ok": not failed, "checks": [asdict(finding) for finding in findings]})
    return MACHINE_FAILED if failed else DONE
