"""The shared memory of one run on one host, as the controller makes it (no torch here).

A memfd has no name: the controller's workers inherit the descriptor, no other user can open it,
and the kernel frees it with the last process, so nothing can leak. It begins with a control block
of semaphores and mutexes; the workers append memory for their model when they know it.

Semaphores and mutexes are the C library's own, process-shared, reached through ctypes: they
carry the acquire and release fences that weakly ordered processors (ARM) need, sleep in the
kernel, and a robust mutex is handed on when its owner dies.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import fcntl
import hmac
import mmap
import os
import stat

from phalanx.core.errors import InputError, PeerLost

CELL = 64  # bytes for one primitive, a cache line; glibc's and musl's are all smaller
LOCKS = 64
WAKE_LOCK = LOCKS  # one more lock, which guards the flags of those who wait to be woken
ROUNDS = 6  # rounds of the dissemination barrier, enough for 64 workers
MAX_WORKERS = 1 << ROUNDS
FLAGS_AT = CELL  # after the proof: a byte per worker that says whether it waits to be woken
LOCKS_AT = mmap.PAGESIZE
BARRIER_AT = LOCKS_AT + (LOCKS + 1) * CELL
WAKE_AT = BARRIER_AT + MAX_WORKERS * ROUNDS * CELL
PAIRS_AT = WAKE_AT + MAX_WORKERS * CELL
CONTROL_BYTES = -(-(PAIRS_AT + MAX_WORKERS**2 * CELL) // mmap.PAGESIZE) * mmap.PAGESIZE

_PTHREAD_PROCESS_SHARED = 1
_PTHREAD_MUTEX_ROBUST = 1


def barrier_cell(rank: int, barrier_round: int) -> int:
    return BARRIER_AT + (rank * ROUNDS + barrier_round) * CELL


def lock_cell(index: int) -> int:
    return LOCKS_AT + index * CELL


def wake_cell(rank: int) -> int:
    return WAKE_AT + rank * CELL


def pair_cell(sender: int, receiver: int) -> int:
    """Return the place where ``sender`` counts what it has signalled to ``receiver``.

    Each pair has one, because a worker may already wait with others while a partner still waits in
    an earlier barrier: a common cell would take their signals for the partner's.
    """
    return PAIRS_AT + (receiver * MAX_WORKERS + sender) * CELL


def create(workers: int, proof: bytes = b"") -> int:
    """Make an arena for ``workers`` processes; return its descriptor, which they inherit.

    ``proof`` lies at its beginning, for those who open it by the number of the descriptor.
    """
    if workers > MAX_WORKERS:
        raise InputError(
            f"{workers} workers are too many for one machine",
            f"Use at most {MAX_WORKERS} workers on one machine.",
        )
    descriptor = os.memfd_create("phalanx", os.MFD_CLOEXEC)
    try:
        os.ftruncate(descriptor, CONTROL_BYTES)
        block = mmap.mmap(descriptor, CONTROL_BYTES)
        _initialise(ctypes.addressof(ctypes.c_char.from_buffer(block)), workers)
        os.pwrite(descriptor, proof, 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def opened(place: bytes, proof: bytes) -> int:
    """Opens the arena of another process of this user, if it is memory like ours with this
    ``proof``: never a file on a disk. ``place``: its process, and the descriptor there."""
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK  # or a pipe would block
    try:
        process, number = map(int, place.split())
        descriptor = os.open(f"/proc/{process}/fd/{number}", flags)
    except (ValueError, OSError) as error:
        raise PeerLost(
            f"the first worker of this machine did not share its memory ({error})",
            "See its log; a Python with file capabilities shares none.",
        ) from None
    status = os.fstat(descriptor)
    try:
        fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)  # fails unless it is memory
        fits = stat.S_ISREG(status.st_mode) and status.st_size >= CONTROL_BYTES
        ours = fits and status.st_nlink == 0 and status.st_uid == os.getuid()
        if ours and hmac.compare_digest(os.pread(descriptor, len(proof), 0), proof):
            return descriptor
    except OSError:
        pass
    os.close(descriptor)
    raise PeerLost("the first worker of this machine shared an invalid memory descriptor")


def _initialise(base: int, workers: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    for rank in range(workers):
        cells = [barrier_cell(rank, barrier_round) for barrier_round in range(ROUNDS)]
        cells += [pair_cell(sender, rank) for sender in range(workers)]
        for cell in [*cells, wake_cell(rank)]:
            _check(libc.sem_init(ctypes.c_void_p(base + cell), 1, 0))
    attributes = ctypes.create_string_buffer(CELL)
    _check(libc.pthread_mutexattr_init(attributes))
    _check(libc.pthread_mutexattr_setpshared(attributes, _PTHREAD_PROCESS_SHARED))
    _check(libc.pthread_mutexattr_setrobust(attributes, _PTHREAD_MUTEX_ROBUST))
    for index in range(LOCKS + 1):
        _check(libc.pthread_mutex_init(ctypes.c_void_p(base + lock_cell(index)), attributes))


def _check(code: int) -> None:
    if code != 0:
        error = code if code > 0 else ctypes.get_errno()
        raise OSError(error, os.strerror(error))
