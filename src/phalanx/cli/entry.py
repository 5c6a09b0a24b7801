"""Where the ``phalanx`` command begins: Ctrl-C is answered even while it is being loaded."""

import sys

STOPPED = 130
"""As in ``phalanx.core.errors``, which is not loaded yet."""


def main() -> None:
    """The console script."""
    try:
        from phalanx.cli.main import main as command

        command()
    except KeyboardInterrupt:
        sys.exit(STOPPED)
