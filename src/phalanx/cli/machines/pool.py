"""``phalanx pool``: the machines that can take part."""

from __future__ import annotations

import typer

from phalanx.cli.machines.pool_check import check
from phalanx.cli.machines.pool_convert import convert
from phalanx.cli.machines.pool_init import init
from phalanx.cli.machines.pool_probe import probe
from phalanx.cli.machines.pool_trust import trust

pool_app = typer.Typer(
    help="The machines that can take part.", no_args_is_help=True, rich_markup_mode=None
)


@pool_app.callback()
def pool() -> None:
    """The machines that can take part."""


for verb in (init, trust, check, probe, convert):
    pool_app.command()(verb)
