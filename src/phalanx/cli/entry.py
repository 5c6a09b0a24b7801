"""The entry point of the ``phalanx`` command, which handles Ctrl-C even during its imports."""

import sys

STOPPED = 130
"""The same exit code as in ``phalanx.core.errors``, which is not loaded yet."""


def main() -> None:
    """The console script."""
    try:
        from phalanx.cli.main import main as command

        command()
    except KeyboardInterrupt:
        sys.exit(STOPPED)
    except ModuleNotFoundError as error:
        from phalanx.core.script.missing_packages import missing_package

        told = missing_package(error)
        if told is None:
            raise
        print(f"error: {told.cause}\n  {told.remedy}", file=sys.stderr)
        sys.exit(told.exit_code)
