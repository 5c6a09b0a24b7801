"""A Ray of two nodes on this machine, started and stopped by its own commands and processes."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil

RAY = Path(sys.executable).with_name("ray")


class OwnRay:
    """As a context manager: a head and a second node, with one CPU each."""

    def __init__(self, folder: Path, port: int) -> None:
        self._folder = folder
        self.address = f"127.0.0.1:{port}"
        self._port = port
        self._mark = f"PHALANX_TEST_RAY={os.getpid()}-{port}"
        token = folder / "token"
        token.touch(0o600)
        token.write_text(secrets.token_hex(32))
        # Ray listens on all addresses: only who has this token may give it work.
        self.variables = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}

    @property
    def _variables(self) -> dict[str, str]:
        name, _, value = self._mark.partition("=")
        return {**os.environ, **self.variables, "RAY_USAGE_STATS_ENABLED": "0", name: value}

    def __enter__(self) -> OwnRay:
        head = ["--head", f"--port={self._port}", "--include-dashboard=false"]
        try:
            self._start(*head, f"--temp-dir={self._folder}")
            self._start(f"--address={self.address}")
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self, *words: str) -> None:
        common = ["--num-cpus=1", "--node-ip-address=127.0.0.1", "--disable-usage-stats"]
        done = subprocess.run(
            [str(RAY), "start", *words, *common],
            env=self._variables,
            stdin=subprocess.DEVNULL,
            stdout=(self._folder / "start.log").open("ab"),
            stderr=subprocess.STDOUT,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, (self._folder / "start.log").read_text(errors="replace")

    def _marked(self) -> list[psutil.Process]:
        """All that carry the mark of this cluster: not another's, which may run here too."""
        found = []
        for process in psutil.process_iter():
            try:
                data = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if self._mark.encode() in data:
                found.append(process)
        return found

    def __exit__(self, *_: object) -> None:
        # Ray's agents write over their variables, so they are known by what started them.
        ours = set(self._marked())
        for process in list(ours):
            with suppress(psutil.NoSuchProcess):
                ours.update(process.children(recursive=True))
        for number in (signal.SIGTERM, signal.SIGKILL):
            for process in ours:
                with suppress(psutil.NoSuchProcess):
                    process.send_signal(number)
            psutil.wait_procs(list(ours), timeout=10.0)
