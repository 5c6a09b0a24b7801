# The first code on a machine, given to its Python with -c: it imports the agent from memory.
# Any Python has to be able to read them, to say that it is too old.
# ruff: noqa: E402, UP031, UP036
# mypy: ignore-errors
import sys

if sys.version_info < (3, 8):
    sys.stderr.write("Phalanx needs Python 3.8 or newer, this is %d.%d\n" % sys.version_info[:2])
    sys.exit(9)

import importlib.machinery
import json
import os


def read(count):
    """Read exactly ``count`` bytes: the bytes after them are frames."""
    parts = []
    while count:
        part = os.read(0, min(count, 1 << 16))
        if not part:
            sys.exit(9)
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


class FromMemory:
    def __init__(self, sources):
        self.sources = sources

    def find_spec(self, name, path=None, target=None):
        if name not in self.sources:
            return None
        package = any(other.startswith(name + ".") for other in self.sources)
        return importlib.machinery.ModuleSpec(name, self, origin="memory", is_package=package)

    def create_module(self, spec):
        return None

    def get_source(self, name):
        return self.sources[name]

    def exec_module(self, module):
        name = module.__name__
        exec(compile(self.sources[name], "<%s>" % name, "exec"), module.__dict__)


sys.meta_path.insert(0, FromMemory(json.loads(read(int(sys.argv[1])).decode())))

from phalanx.agent import main

sys.exit(main.main())
