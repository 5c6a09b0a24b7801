"""``phalanx watch``: show runs in a browser, while they train and afterwards."""

from __future__ import annotations

import contextlib
import getpass
import html
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer

from phalanx.cli.output import Output
from phalanx.cli.request import options as o
from phalanx.core.errors import InputError

if TYPE_CHECKING:
    from phalanx.core.run_folder.run_paths import RunPaths
    from phalanx.watch.server import WatchServer

MOST_PORT = 65535
LOOK_SECONDS = 0.1


def watch(
    run: o.RunName = None,
    port: Annotated[
        int, typer.Option(metavar="N", help="The port of the pages. Default: a free one.")
    ] = 0,
    pool: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A blueprint whose machines are shown too, also idle."),
    ] = None,
    terminal: Annotated[
        bool, typer.Option("--terminal", help="Show the run in this terminal, in 80 columns.")
    ] = False,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Only print the address; open no browser.")
    ] = False,
    json: o.Json = False,
) -> int:
    """Show runs in a browser: their progress, machines and timelines, live or afterwards.

    The pages are served to this machine alone, read only. The address that is printed lets one
    browser in, once, for 12 hours; then the next address is printed. Ctrl-C ends this, and no run.
    """
    if terminal:
        return _in_terminal(run, plain=not (port or pool or json))
    from phalanx.cli.watch.pool_readings import readings
    from phalanx.launch.run.interrupts import Interrupts
    from phalanx.launch.ssh.ssh_login import with_passwords
    from phalanx.pool.blueprint import read_blueprint

    if not 0 <= port <= MOST_PORT:
        raise InputError(f"--port cannot be {port}", f"Give a number from 1 to {MOST_PORT}.")
    out = Output(json)
    home, found = _wanted(run)
    machines = with_passwords(read_blueprint(pool).machines) if pool else None
    with contextlib.ExitStack() as open_now:
        interrupts = open_now.enter_context(Interrupts())
        server = open_now.enter_context(served(out, home, found, port, machines is not None))
        out.result({"address": server.address, "run": found.id if found else None})
        if machines is not None:
            open_now.enter_context(readings(machines, server.library.take, out.note))
        if not no_browser and is_desktop(os.environ) and not json:
            open_now.enter_context(opened_browser(server.address))
        while not interrupts.asked():
            time.sleep(LOOK_SECONDS)
    return 0


@contextlib.contextmanager
def served(
    out: Output, home: Path, run: RunPaths | None, port: int = 0, pool: bool = False
) -> Iterator[WatchServer]:
    """Within the ``with`` block, serve the pages of ``home``; say where."""
    from phalanx.watch.feed.pool_view import PoolFeed
    from phalanx.watch.server import WatchServer

    def tell_next(address: str) -> None:
        out.note(f"the address has been used; for another browser  {address}")

    start = "#/pool" if pool else fragment(run)
    feed = PoolFeed() if pool else None
    server = WatchServer(home, tell_next, out.note, port=port, start=start, pool=feed)
    with server.serving():
        out.say(f"open    {server.address}")
        if line := tunnel(os.environ, server.port):
            out.say(f"but first, on the computer that you sit at:  {line}")
        yield server


@contextlib.contextmanager
def watched(wanted: bool, out: Output, run: RunPaths | None = None) -> Iterator[None]:
    """``--watch`` of ``run`` and ``compare``: the pages, for as long as the command takes."""
    if not wanted:
        yield
        return
    from phalanx.core.run_folder.run_paths import runs_home

    home = runs_home() if run is None else run.folder.absolute().parent
    with served(out, home, run) as server:
        yield
    out.say(f"watch   phalanx watch --port {server.port}{f' {run.id}' if run else ''}")


def _in_terminal(name: str | None, *, plain: bool) -> int:
    from phalanx.cli.request.find_run import single_run
    from phalanx.watch.terminal import watch_in_terminal

    if not plain:
        raise InputError(
            "--terminal cannot be used with --port, --pool or --json", "Leave one of the two out."
        )
    watch_in_terminal(single_run(name, "--terminal"))
    return 0


def _wanted(name: str | None) -> tuple[Path, RunPaths | None]:
    """Return the folder of the runs to show, and the run to show first."""
    from phalanx.core.run_folder.run_paths import find_run, list_runs, runs_home

    if name is None and not list_runs():
        return runs_home(), None
    found = find_run(name)
    if not found.launch.exists() and not found.study.exists():
        raise InputError(f"{found.folder} is not a run", "List runs: phalanx runs")
    return found.folder.absolute().parent, found


def fragment(run: RunPaths | None) -> str:
    """Return the end of an address that opens a run's page: a server never sees this part."""
    return f"#/run/{quote(run.id, safe='')}" if run and not run.study.exists() else ""


def tunnel(variables: Mapping[str, str], port: int) -> str | None:
    """Return the command that leads ``port`` to the user's computer; ``None`` outside of SSH."""
    words = variables.get("SSH_CONNECTION", "").split()
    if len(words) != 4 or not words[3].isdecimal():
        return None
    try:
        host = str(ip_address(words[2].partition("%")[0]))
    except ValueError:
        return None
    option = "" if words[3] == "22" else f" -p {words[3]}"
    return f"ssh -L {port}:127.0.0.1:{port}{option} {getpass.getuser()}@{host}"


def is_desktop(variables: Mapping[str, str]) -> bool:
    """Whether a browser that is opened here is seen by the user."""
    if "SSH_CONNECTION" in variables:
        return False
    return sys.platform == "darwin" or any(
        variables.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY")
    )


@contextlib.contextmanager
def opened_browser(address: str) -> Iterator[None]:
    """Open a browser by a private file that leads on: other users see words of commands, and these
    would have the token."""
    import webbrowser

    folder = Path(tempfile.mkdtemp(prefix="phalanx-watch-"))
    try:
        file = folder / "open.html"
        file.touch(mode=0o600)
        there = html.escape(address)
        file.write_text(f'<meta http-equiv="refresh" content="0; url={there}">', encoding="utf-8")
        webbrowser.open(file.as_uri())
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)
