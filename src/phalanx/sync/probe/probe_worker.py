"""``python -m phalanx.sync.probe.probe_worker``: one machine's part in a probe of links.

It reads its orders from lines of JSON on its standard input, which keeps the key out of process
lists, and answers by lines on its standard output. It ends when its input does, whatever it is
doing, and at the latest when its time is over.
"""

from __future__ import annotations

import os
import queue
import sys
import threading

import msgspec

from phalanx.core.errors import PhalanxError
from phalanx.core.run_folder.run_key import RunKey
from phalanx.sync.probe import probe_messages as m

LINE_LIMIT = 1 << 20
BAD_ORDERS = 2


def main() -> int:
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read_input, args=(lines,), daemon=True).start()
    try:
        orders = m.orders_decoder.decode(lines.get())
        key = RunKey.from_text(orders.key)
    except (msgspec.MsgspecError, PhalanxError):
        print("the first line of standard input has to be orders", file=sys.stderr)
        return BAD_ORDERS
    limit = threading.Timer(orders.seconds, os._exit, (1,))
    limit.daemon = True
    limit.start()
    try:
        _serve(orders, key, lines)
    except PhalanxError as error:
        _say(m.ProbeProblem(error.cause, error.remedy))
    except msgspec.MsgspecError:
        print("a line of standard input is no request", file=sys.stderr)
        return BAD_ORDERS
    return 0


def _serve(orders: m.ProbeOrders, key: RunKey, lines: queue.SimpleQueue[bytes]) -> None:
    import torch

    from phalanx.sync.connect.dispatcher import Credentials, Dispatcher
    from phalanx.sync.connect.listener import Listener
    from phalanx.sync.probe.probe_part import ProbeParticipant

    torch.set_num_threads(1)
    listener = Listener(orders.address, key, tls=orders.tls)
    access = Credentials(key, orders.address, Dispatcher(listener), orders.tls)
    part = ProbeParticipant(access)
    _say(m.Ready(listener.port))
    while True:
        request = m.request_decoder.decode(lines.get())
        try:
            _say(part.answer(request))
        except PhalanxError as error:
            _say(m.ProbeProblem(error.cause, error.remedy))


def _read_input(lines: queue.SimpleQueue[bytes]) -> None:
    """When its input ends the process that started it is gone, and the figures are not needed."""
    while line := sys.stdin.buffer.readline(LINE_LIMIT):
        lines.put(line)
    os._exit(0)


def _say(answer: m.Answer) -> None:
    sys.stdout.buffer.write(m.encode(answer) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # at once: a thread still waits for input, which an orderly end would wait for
