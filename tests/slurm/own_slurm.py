"""A Slurm of one node on loopback: its own munged, slurmctld and slurmd, in a folder of its own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")
CONFIGURATION = """\
ClusterName=phalanx-test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={daemon}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=15
CredType=cred/munge
SlurmUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/builtin
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
ReturnToService=2
KillWait=15
MinJobAge=60
MpiDefault=none
SlurmdParameters=config_overrides
MailProg=/bin/true
NodeName={host} NodeAddr=127.0.0.1 CPUs=4 State=UNKNOWN
PartitionName=debug Nodes={host} Default=YES MaxTime=10 State=UP OverSubscribe=FORCE:4
"""


def why_not() -> str | None:
    """The reason for which there can be no Slurm here, if there is one."""
    if os.geteuid() != 0:
        return "slurmd needs root"
    missing = [name for name in PROGRAMS if _path(name) is None]
    if missing:
        return f"{', '.join(missing)} not installed (Debian: slurm-wlm, munge)"
    return None


def _path(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def free_ports(count: int) -> list[int]:
    with ExitStack() as held:
        doors = [held.enter_context(socket.socket()) for _ in range(count)]
        for door in doors:
            door.bind(("127.0.0.1", 0))
        return [door.getsockname()[1] for door in doors]


class OwnSlurm:
    """As a context manager: daemons in the foreground, ended by their own process ids."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.configuration = folder / "slurm.conf"
        self._running: list[subprocess.Popen[bytes]] = []

    @property
    def variables(self) -> dict[str, str]:
        return {"SLURM_CONF": str(self.configuration)}

    def __enter__(self) -> OwnSlurm:
        host = socket.gethostname().partition(".")[0]
        controller, daemon = free_ports(2)
        for part in ("state", "spool"):
            (self.folder / part).mkdir()
        self.folder.chmod(0o755)
        words = {"folder": self.folder, "host": host, "controller": controller, "daemon": daemon}
        self.configuration.write_text(CONFIGURATION.format(**words))
        key = self.folder / "munge.key"
        key.touch(0o600)
        key.write_bytes(os.urandom(128))
        try:
            self._start_all(key)
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start_all(self, key: Path) -> None:
        names = {
            "--socket": "munge.socket", "--pid-file": "munged.pid", "--log-file": "munged.log",
            "--seed-file": "munged.seed",
        }  # fmt: skip
        files = [f"{option}={self.folder / name}" for option, name in names.items()]
        self._start("munged", "--foreground", "--force", f"--key-file={key}", *files)
        self._until(lambda: (self.folder / "munge.socket").exists(), "munged")
        self._start("slurmctld", "-D", "-f", str(self.configuration))
        self._start("slurmd", "-D", "-f", str(self.configuration))
        self._until(lambda: self.ask("sinfo", "-h", "-o", "%T") == "idle", "the node")

    def _start(self, name: str, *words: str) -> None:
        with (self.folder / f"{name}.out").open("wb") as output:
            process = subprocess.Popen(
                [str(_path(name)), *words],
                env={**os.environ, **self.variables},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self._running.append(process)

    def _until(self, ready: object, what: str, seconds: float = 60.0) -> None:
        assert callable(ready)
        end = time.monotonic() + seconds
        while not ready():
            logs = "\n".join(
                p.read_text(errors="replace")[-800:] for p in self.folder.glob("*.out")
            )
            assert time.monotonic() < end, f"{what} was never ready\n{logs}"
            time.sleep(0.2)

    def ask(self, *words: str) -> str:
        """What a command of Slurm prints; nothing if it fails."""
        ended = subprocess.run(
            words,
            env={**os.environ, **self.variables},
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        return ended.stdout.strip()

    def jobs(self) -> list[str]:
        """The numbers of those that are not over."""
        return self.ask("squeue", "-h", "-o", "%i").split()

    def __exit__(self, *_: object) -> None:
        for job in self.jobs() if len(self._running) == 3 else ():
            self.ask("scancel", "--signal=KILL", job)
            self.ask("scancel", job)
        for process in reversed(self._running):
            process.terminate()
            try:
                process.wait(10.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10.0)
