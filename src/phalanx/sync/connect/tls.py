"""TLS 1.3 between members of a run, with nothing to configure.

The run's key and what both sides said and proved on a connection give the two of them the same
Ed25519 key pair and the same certificate, byte for byte (HKDF, RFC 5869; Ed25519 signatures are
deterministic, RFC 8032). Both show it and trust no other, so TLS ends where the proof ended.
(Python's ssl gives no access to the exporter of RFC 9266, which would tie them the other way.)
"""

from __future__ import annotations

import datetime
import os
import select
import socket
import ssl
import threading
from collections.abc import Sequence
from typing import ClassVar

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.x509.oid import NameOID

from phalanx.core.errors import PeerLost
from phalanx.core.run_folder.run_key import RunKey
from phalanx.sync.connect import liveness
from phalanx.sync.connect.channel import Channel, reason
from phalanx.sync.connect.handshake import HANDSHAKE_SECONDS, Dropped

RECORD_BYTES = 1 << 14
_PURPOSE = b"phalanx tls identity 2"
# The run's key ends with the run: the certificate needs no dates of its own (RFC 5280, 4.1.2.5).
_FROM = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
_UNTIL = datetime.datetime(9999, 12, 31, 23, 59, 59, tzinfo=datetime.UTC)


class Identity:
    """What both sides of one connection show in TLS, and the only thing that they accept."""

    def __init__(self, key: RunKey, binding: bytes) -> None:
        derivation = HKDF(hashes.SHA256(), length=32, salt=None, info=_PURPOSE + binding)
        seed = derivation.derive(key.secret())
        private = Ed25519PrivateKey.from_private_bytes(seed)
        self.certificate = _certificate(private).public_bytes(serialization.Encoding.PEM)
        secret = private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        self._secret = secret

    def wrap(self, connection: socket.socket, *, server: bool) -> ssl.SSLSocket:
        """Return ``connection`` with TLS, its handshake still to be done."""
        protocol = ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT
        context = self._context(protocol, self._secret)
        return context.wrap_socket(connection, server_side=server, do_handshake_on_connect=False)

    def _context(self, protocol: int, secret: bytes) -> ssl.SSLContext:
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        # The certificate stands for the run, not for a name.
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=self.certificate.decode())
        # Without tickets: these would make a connection readable without data for us.
        if protocol == ssl.PROTOCOL_TLS_SERVER:
            context.num_tickets = 0
        # Python loads key pairs from files only: give it one that never touches a disk.
        number = os.memfd_create("phalanx", os.MFD_CLOEXEC)
        try:
            os.write(number, secret + self.certificate)
            context.load_cert_chain(f"/proc/self/fd/{number}")
        finally:
            os.close(number)
        return context


def client_channel(connection: socket.socket, identity: Identity, peer: str) -> Channel:
    """Do the client's part of TLS over a connection on which both sides have proved the key."""
    connection.settimeout(HANDSHAKE_SECONDS)
    try:
        secured = identity.wrap(connection, server=False)
    except OSError:
        raise Dropped(refused=False) from None
    try:
        secured.do_handshake()
        return TlsChannel(secured, peer)
    except ssl.SSLCertVerificationError:
        secured.close()
        raise PeerLost(
            f"{peer} showed a certificate that is not this connection's",
            "This may be an attack on the connection: check the network.",
        ) from None
    except OSError:
        secured.close()
        raise Dropped(refused=False) from None


class TlsChannel(Channel):
    """A channel that encrypts its bytes by TLS."""

    # A part that was encrypted has to be sent again with the same memory.
    sends_ahead: ClassVar[bool] = False

    def __init__(self, secured: ssl.SSLSocket, peer: str) -> None:
        super().__init__(secured, peer)
        self._secured = secured
        # OpenSSL must not send and receive on one connection at the same moment.
        self._turn = threading.Lock()
        self._sending_wants = select.POLLOUT
        self._receiving_wants = select.POLLIN
        secured.setblocking(False)

    def poll(self, seconds: float) -> bool:
        """Wait up to ``seconds`` for something to read."""
        with self._turn:
            if self._secured.pending():
                return True
        return super().poll(seconds)

    def send_some(self, views: Sequence[memoryview], *, wait: bool) -> int:
        """Send one record, if that is possible now."""
        piece = _first_record(views)
        while True:
            try:
                with self._turn:
                    return self._secured.send(piece)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as wants:
                self._sending_wants = _events(wants)
            except OSError as error:
                raise self.lost(reason(error)) from None
            if not wait:
                return 0
            self._wait(self._sending_wants)

    def receive_some(self, view: memoryview, *, wait: bool) -> int:
        """Receive the rest of a record, if something of it is there."""
        while True:
            try:
                with self._turn:
                    count = self._secured.recv_into(view)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as wants:
                self._receiving_wants = _events(wants)
            except OSError as error:
                raise self.lost(reason(error)) from None
            else:
                if not count:
                    raise self.closed()
                return count
            if not wait:
                return 0
            self._wait(self._receiving_wants)

    def poll_events(self, sending: bool, receiving: bool) -> int:
        """Return the events that OpenSSL waits for."""
        return (self._sending_wants if sending else 0) | (self._receiving_wants if receiving else 0)

    def close(self) -> None:
        """End the connection."""
        # A socket that is shut down forgets its TLS first: it must not be in use at that moment.
        with self._turn:
            super().close()

    def _wait(self, events: int) -> None:
        if not self.ready(events, liveness.LOOK_SECONDS):
            self.look()


def _first_record(views: Sequence[memoryview]) -> memoryview:
    """Return the first bytes of ``views``; small pieces are joined, because each record costs."""
    if len(views) == 1 or len(views[0]) >= RECORD_BYTES:
        return views[0]
    joined = bytearray()
    for view in views:
        joined += view[: RECORD_BYTES - len(joined)]
        if len(joined) == RECORD_BYTES:
            break
    return memoryview(joined)


def _events(wants: ssl.SSLError) -> int:
    return select.POLLIN if isinstance(wants, ssl.SSLWantReadError) else select.POLLOUT


def _certificate(private: Ed25519PrivateKey) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "phalanx run")])
    builder = x509.CertificateBuilder(name, name, private.public_key(), 1, _FROM, _UNTIL)
    limits = x509.BasicConstraints(ca=False, path_length=None)
    return builder.add_extension(limits, critical=True).sign(private, algorithm=None)
