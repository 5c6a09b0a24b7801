"""One machine's answers to the requests of a probe."""

from __future__ import annotations

from phalanx.sync.collective.links import ChannelLinks, open_links
from phalanx.sync.connect.dispatcher import Credentials
from phalanx.sync.probe import probe_compute, probing
from phalanx.sync.probe import probe_messages as m

LATENCY_SHARE = 0.3
"""Of a pair's time; the rest is for the two directions."""


class ProbeParticipant:
    """Keeps the mesh that collectives run on; pairs get connections of their own."""

    def __init__(self, access: Credentials) -> None:
        self._access = access
        self._mesh: ChannelLinks | None = None

    def answer(self, request: m.Request) -> m.Answer:
        """Do what is asked; a lost peer raises."""
        if isinstance(request, m.MeasureMachine):
            return probe_compute.measure_machine(request.seconds)
        if isinstance(request, m.MeasurePair):
            return self._measure_pair(request)
        if isinstance(request, m.OpenMesh):
            if self._mesh is not None:
                self._mesh.close()
            self._mesh = self._open(request)
            return m.ProbeDone()
        return self._time(request)

    def _measure_pair(self, request: m.MeasurePair) -> m.Answer:
        links = self._open(request)
        try:
            half = probing.latency(links, request.seconds * LATENCY_SHARE)
            each = request.seconds * (1 - LATENCY_SHARE) / 2
            streams = [probing.stream(links, sender, each, half) for sender in (0, 1)]
        finally:
            links.close()
        moved = sum(stream.moved for stream in streams)
        handling = sum(stream.processor for stream in streams) / max(moved, 1)
        return m.PairFigures(streams[request.rank].rate or 0.0, half, handling)

    def _time(self, request: m.TimeCollective) -> m.Answer:
        if self._mesh is None or request.name not in probing.COLLECTIVES:
            return m.ProbeProblem(f"unknown measurement '{request.name}'", "Update Phalanx there.")
        count = min(request.bytes, m.LARGEST)
        return m.Timed(probing.time_collective(self._mesh, request.name, count, request.repeats))

    def _open(self, request: m.MeasurePair | m.OpenMesh) -> ChannelLinks:
        return open_links(
            request.rank,
            [(peer.address, peer.port) for peer in request.peers],
            self._access,
            request.group,
            timeout=request.opening,
            names=[peer.name for peer in request.peers],
        )
