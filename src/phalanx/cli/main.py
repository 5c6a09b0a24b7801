"""The ``phalanx`` command: its verbs, and the exit codes for their errors.

Verbs import what they need when they run, so that ``phalanx --help`` answers at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from phalanx.cli.data.data import data_app
from phalanx.cli.invocation import PASS_WORDS_ON, Invocation
from phalanx.cli.machines.doctor import doctor
from phalanx.cli.machines.lab import lab_app
from phalanx.cli.machines.pool_check import check
from phalanx.cli.machines.pool_init import init
from phalanx.cli.machines.pool_probe import probe
from phalanx.cli.machines.pool_trust import trust
from phalanx.cli.output import print_json, write_problem
from phalanx.cli.planning.plan import plan
from phalanx.cli.usage import explain
from phalanx.cli.verbs.attach import attach
from phalanx.cli.verbs.compare import compare
from phalanx.cli.verbs.demo import demo
from phalanx.cli.verbs.export import export
from phalanx.cli.verbs.logs import logs
from phalanx.cli.verbs.report import report
from phalanx.cli.verbs.resume import resume
from phalanx.cli.verbs.run import run
from phalanx.cli.verbs.runs import runs
from phalanx.cli.verbs.simulate import simulate
from phalanx.cli.verbs.stop import stop
from phalanx.cli.verbs.switch import switch
from phalanx.cli.verbs.worker import worker
from phalanx.cli.watch.watch import watch
from phalanx.core.errors import SCRIPT_FAILED, STOPPED, InputError, PhalanxError, RunStopped
from phalanx.core.registry import did_you_mean

DEBUG_VARIABLE = "PHALANX_DEBUG"


class Verbs(TyperGroup):
    """The verbs; an unknown name is refused with the nearest known one."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [example.split()[1] for _, example in VERBS]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0]
        if name not in self.commands:
            raise InputError(f"unknown command '{name}'", did_you_mean(name, self.commands))
        if isinstance(ctx.obj, Invocation) and ctx.obj.words and name not in PASS_WORDS_ON:
            raise InputError(
                f"'phalanx {name}' takes no arguments after --",
                f"Only these pass arguments to a script: {', '.join(PASS_WORDS_ON)}.",
            )
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            # typer would exit without the JSON object that --json promises.
            raise RunStopped from None


app = typer.Typer(
    name="phalanx",
    cls=Verbs,
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example: phalanx demo",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from phalanx import __version__

        print(f"phalanx {__version__}")
        raise typer.Exit


@app.callback()
def phalanx(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Train one model on many workers, and know whether it was worth it."""


pool_app = typer.Typer(
    help="The machines that can take part.", no_args_is_help=True, rich_markup_mode=None
)
for verb in (init, trust, check, probe):
    pool_app.command()(verb)

VERBS: tuple[tuple[Any, str], ...] = (
    (demo, "phalanx demo"),
    (run, "phalanx run train.py --strategy allreduce --workers 2 -- --depth 20"),
    (compare, "phalanx compare train.py --strategies allreduce,async --workers 2 --repeat 3"),
    (plan, "phalanx plan train.py --pool pool.yaml --deadline 30min"),
    (simulate, "phalanx simulate train.py --workers 64 --strategy async --rate 1gbit"),
    (pool_app, "phalanx pool check pool.yaml"),
    (data_app, "phalanx data inspect train.parquet"),
    (runs, "phalanx runs --limit 5"),
    (watch, "phalanx watch"),
    (report, "phalanx report train-allreduce --bundle"),
    (logs, "phalanx logs --rank 1 --follow"),
    (switch, "phalanx switch async"),
    (attach, "phalanx attach train-allreduce"),
    (stop, "phalanx stop"),
    (resume, "phalanx resume train-allreduce --strategy async --workers 4"),
    (export, "phalanx export train-allreduce --output model.safetensors"),
    (lab_app, "phalanx lab up --count 3 --rate 1gbit --out lab.yaml"),
    (worker, "phalanx worker train.py --strategy async --pool machines.yaml"),
    (doctor, "phalanx doctor"),
)
"""The commands in the order of the help, each with an example."""

for verb, example in VERBS:
    if isinstance(verb, typer.Typer):
        name = example.split()[1]
        app.add_typer(verb, name=name, no_args_is_help=False, epilog=f"Example: {example}")
    else:
        app.command(epilog=f"Example: {example}")(verb)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line ``argv`` and exit with its code."""
    from phalanx.core.run_folder.run_key import without_core_dumps

    without_core_dumps()  # blueprints have passwords
    sys.exit(invoke(sys.argv[1:] if argv is None else argv))


def invoke(argv: Sequence[str]) -> int:
    """Run one command line and return its exit code; an error prints at most two lines."""
    invocation = Invocation.read(argv)
    try:
        command = typer.main.get_command(app)
        given = invocation if invocation.ours or invocation.words else Invocation(("--help",))
        ours = list(given.ours)
        result = command.main(ours, prog_name="phalanx", standalone_mode=False, obj=given)
        return result if isinstance(result, int) else 0
    except BrokenPipeError:
        # The reader of stdout has closed it: writing the rest of the buffer at exit must not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return SCRIPT_FAILED
    except (RunStopped, KeyboardInterrupt):
        return _end(invocation, PhalanxError("stopped"), STOPPED)
    except PhalanxError as error:
        return _end(invocation, error, error.exit_code)
    except Exception as error:
        explained = explain(error, invocation)
        return _end(invocation, explained, explained.exit_code)


def _end(invocation: Invocation, error: PhalanxError, code: int) -> int:
    if os.environ.get(DEBUG_VARIABLE) and sys.exc_info()[0] is not None:
        import traceback

        traceback.print_exc()
    write_problem(error.cause, error.remedy)
    if invocation.json:
        print_json({"error": error.cause, "remedy": error.remedy, "exit_code": code})
    return code
