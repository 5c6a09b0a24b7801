"""Explains in one line for the user how a machine was lost."""

from __future__ import annotations

import signal

from phalanx.core.errors import MachineError
from phalanx.core.words import signal_name
from phalanx.launch.ssh.ssh_command import RunningCommand
from phalanx.pool.machine import Machine

TOO_OLD_CODE = 9
NOT_FOUND_CODE = 127
UNKNOWN_OPTION_CODE = 2
_WAIT = 2.0
_MOST_WORDS = 500


class ConnectionLost(MachineError):  # noqa: N818  (what happened)
    """A connection was lost, but the agent at its other end may still be there."""


async def why_it_ended(command: RunningCommand, what: str = "agent") -> MachineError:
    """Return why ``command`` has ended, from its exit code and its last line of errors."""
    machine = command.machine
    try:
        code = await command.wait(_WAIT)
    except TimeoutError:
        code = None
    last = without_controls((command.errors.splitlines() or [""])[-1])
    if code == NOT_FOUND_CODE:
        return MachineError(
            f"{machine.name} has no command '{machine.python}'",
            "Set 'python' in the blueprint to its Python.",
        )
    if code == TOO_OLD_CODE:
        return MachineError(
            f"{machine.name}: {last}", "Set 'python' in the blueprint to a newer Python."
        )
    if code == UNKNOWN_OPTION_CODE and "python -h" in command.errors:
        return MachineError(
            f"{machine.name}: '{machine.python}' is not a Python 3",
            "Set 'python' in the blueprint to a newer Python.",
        )
    if not code and not last:  # code 0: a relay to an agent, which the agent has closed
        return ConnectionLost(
            f"the connection to {machine.name} was lost", "Check whether it is still up."
        )
    why = last or exit_words(code)
    kind = MachineError if code else ConnectionLost
    return kind(
        f"the {what} on {machine.name} ended: {why}",
        "Check whether the machine is up, and whether something kills processes there.",
    )


def exit_words(code: int | None) -> str:
    """Explain an exit code: shells, and our guardian, show a signal as 128 plus its number."""
    if code is not None and 128 < code <= 128 + signal.SIGRTMAX:
        return f"it was killed by {signal_name(code - 128)}"
    return f"exit code {code}"


def silent(machine: Machine, seconds: float) -> MachineError:
    return ConnectionLost(
        f"{machine.name} has not answered for {seconds:.0f} seconds",
        "Check whether it is up, and whether it can be reached.",
    )


def talks_otherwise(machine: Machine, why: str) -> MachineError:
    return MachineError(
        f"{machine.name} sent unexpected output: {without_controls(why)}",
        "Log in with ssh to see what it prints: its login shell must print nothing.",
    )


def without_controls(text: str) -> str:
    """Make one printable line of a text: a machine's words must not steer a terminal."""
    return "".join(c if c.isprintable() else " " for c in text)[:_MOST_WORDS].strip()
