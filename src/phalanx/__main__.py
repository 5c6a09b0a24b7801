"""``python -m phalanx``: the command line, where its script is not on the PATH."""

from phalanx.cli.entry import main

if __name__ == "__main__":
    main()
