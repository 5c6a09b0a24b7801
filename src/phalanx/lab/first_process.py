"""The first process of an emulated machine: a program that imports only the standard library.

It makes the machine's namespaces, prints its process id, reads its setup (JSON on stdin), makes the
private folders, starts sshd, prints ``ready``, and then reaps orphans. When it ends, the kernel
ends everything in the machine.
"""

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

NAMESPACES = 0x00020000 | 0x04000000 | 0x08000000 | 0x20000000 | 0x40000000
"""Mounts, host name, IPC, processes, network (``CLONE_NEW*`` of sched.h)."""
BIND, RECURSIVE, PRIVATE = 0x1000, 0x4000, 0x40000
RUN = Path("/run")
HOME = RUN / "home"
SSH = RUN / "ssh"
libc = ctypes.CDLL(None, use_errno=True)


def check(result: int, what: str) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    words = [word.encode() or None for word in (source, target, kind)]
    check(libc.mount(*words, ctypes.c_ulong(flags), options.encode() or None), f"mount {target}")


def make_files(setup: dict[str, Any]) -> None:
    for folder in (HOME, SSH, RUN / "etc"):
        folder.mkdir(mode=0o700)
    (RUN / "sshd").mkdir(mode=0o755)
    Path(RUN / "etc").chmod(0o755)
    put(SSH / "host_key", setup["host_key"], 0o600)
    put(SSH / "authorized_keys", setup["authorized_key"], 0o600)
    put(SSH / "config", sshd_settings(setup["address"], bool(setup["password"])), 0o600)
    replace("/etc/hosts", setup["hosts"], 0o644)
    replace("/etc/hostname", setup["name"] + "\n", 0o644)
    accounts = Path("/etc/passwd").read_text().splitlines()
    replace("/etc/passwd", "".join(f"{moved_home(line)}\n" for line in accounts), 0o644)
    if setup["password"]:
        replace("/etc/shadow", f"root:{setup['password']}:20000:0:99999:7:::\n", 0o600)


def moved_home(account: str) -> str:
    fields = account.split(":")
    if fields[0] == "root" and len(fields) == 7:
        fields[5] = str(HOME)
    return ":".join(fields)


def put(path: Path, text: str, mode: int) -> None:
    path.touch(mode)
    path.write_text(text)
    path.chmod(mode)


def replace(path: str, text: str, mode: int) -> None:
    """Show other content in the place of a file of the host, in this machine only."""
    ours = RUN / "etc" / Path(path).name
    put(ours, text, mode)
    if Path(path).exists():
        mount(str(ours), path, flags=BIND)


def sshd_settings(address: str, with_password: bool) -> str:
    return "\n".join(
        (
            f"ListenAddress {address}:22",
            f"HostKey {SSH / 'host_key'}",
            f"AuthorizedKeysFile {SSH / 'authorized_keys'}",
            f"PermitRootLogin {'yes' if with_password else 'prohibit-password'}",
            f"PasswordAuthentication {'yes' if with_password else 'no'}",
            "KbdInteractiveAuthentication no",
            "UsePAM no",
            "UseDNS no",
            "StrictModes yes",
            "PrintMotd no",
            "PidFile none",
            "MaxStartups 200",
            "MaxSessions 200",
            "Subsystem sftp internal-sftp",
            "",
        )
    )


def start_sshd(program: str, address: str) -> None:
    """Start it and wait until it answers."""
    log = (SSH / "log").open("wb")
    daemon = subprocess.Popen(
        [program, "-D", "-e", "-f", str(SSH / "config")],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        cwd="/",
    )
    end = time.monotonic() + 20
    while time.monotonic() < end:
        with suppress(OSError), socket.create_connection((address, 22), timeout=1):
            return
        if daemon.poll() is not None:
            break
        time.sleep(0.02)
    said = " ".join((SSH / "log").read_text(errors="replace").split())
    raise OSError(f"sshd does not answer: {said[-300:]}")


def set_up(setup: dict[str, Any]) -> None:
    socket.sethostname(setup["name"])
    # The machine gets its own /proc, /sys, /run, /tmp and /dev/shm; shared folders come back.
    shared = setup["shared"]
    mount("", "/", flags=RECURSIVE | PRIVATE)
    kept = [(path, os.open(path, os.O_PATH)) for path in [*shared, "/sys/fs/cgroup"]]
    mount("proc", "/proc", "proc")
    mount("sysfs", "/sys", "sysfs")
    for path, mode in (("/run", "755"), ("/tmp", "1777"), ("/dev/shm", "1777")):
        mount("tmpfs", path, "tmpfs", options=f"mode={mode}")
    for path, number in kept:
        Path(path).mkdir(parents=True, exist_ok=True)
        mount(f"/proc/self/fd/{number}", path, flags=BIND | RECURSIVE)
        os.close(number)
    make_files(setup)
    start_sshd(setup["sshd"], setup["address"])


def serve() -> None:
    """Be the machine's first process: set it up, then reap orphans until the end."""
    os.setsid()
    os.chdir("/")
    os.umask(0o022)
    setup = sys.stdin.read()
    if not setup:
        return  # the process that was starting the machine is gone
    try:
        set_up(json.loads(setup))
    except OSError as error:
        print(f"error {error}", flush=True)
        return
    print("ready", flush=True)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nowhere, number)
    while True:
        try:
            os.wait()
        except ChildProcessError:
            time.sleep(0.2)  # even sshd is gone; orphans may still come


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    check(libc.unshare(NAMESPACES), "unshare")
    pid = os.fork()
    if pid == 0:
        serve()
        os._exit(1)
    print(pid, flush=True)


if __name__ == "__main__":
    main()
