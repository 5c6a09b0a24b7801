"""SSH servers on loopback, made of asyncssh: keys, a command that says hello, and a way through."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncssh

USER = "ml"
PASSWORD = "right words"


def new_key(kind: str = "ssh-ed25519") -> asyncssh.SSHKey:
    return asyncssh.generate_private_key(kind)


def write_client_key(folder: Path) -> tuple[Path, str]:
    """A private key's file, and the line that lets it in."""
    key = new_key()
    path = folder / "id_test"
    path.write_bytes(key.export_private_key())
    path.chmod(0o600)
    return path, f"{key.export_public_key().decode()}"


@asynccontextmanager
async def ssh_server(host_key: asyncssh.SSHKey, allowed: str, port: int = 0) -> AsyncIterator[int]:
    """Its port; whoever logs in as ``ml`` with the allowed key may run commands: they say hello."""

    def answer(process: asyncssh.SSHServerProcess[str]) -> None:
        process.stdout.write("hello\n")
        process.exit(0)

    nobody = asyncssh.import_authorized_keys("")
    keys = asyncssh.import_authorized_keys(allowed)

    class Server(asyncssh.SSHServer):
        def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
            self._connection = conn

        def connection_requested(
            self, dest_host: str, dest_port: int, orig_host: str, orig_port: int
        ) -> bool:
            return True  # a jump host

        def begin_auth(self, username: str) -> bool:
            self._connection.set_authorized_keys(keys if username == USER else nobody)
            return True

        def password_auth_supported(self) -> bool:
            return True

        def validate_password(self, username: str, password: str) -> bool:
            return username == USER and password == PASSWORD

    server = await asyncssh.listen(
        "127.0.0.1", port, server_host_keys=[host_key], process_factory=answer,
        server_factory=Server,
    )  # fmt: skip
    try:
        yield server.get_port()
    finally:
        server.close()
        await server.wait_closed()
