"""Who gets an answer: every route and method, with and without cookie, from here and elsewhere."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from made_runs import write_run
from starlette.responses import Response
from watch_client import Client, Served, served

from phalanx.core.run_folder.trust import key_file, user_secret
from phalanx.watch.access import COOKIE_SECONDS, PageGate
from phalanx.watch.feed.pool_view import PoolFeed

RUN = "20250102-000000-made"
ONE = f"/api/run/{RUN}"
ROUTES = (
    "/",
    "/static/app.js",
    "/api/runs",
    "/api/stream",
    f"/api/compare?runs={RUN}",
    "/api/pool",
    ONE,
    f"{ONE}/charts",
    f"{ONE}/cluster",
    f"{ONE}/timeline",
    f"{ONE}/log/0",
    f"{ONE}/csv/loss",
    f"{ONE}/stream",
)
UNKNOWN = ("/no-such-page", "/enter/", "/api/run/..", "/enter?token=")
METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "QUERY")
ELSEWHERE = (
    "evil.example",
    "127.0.0.1.evil.example",
    "evil.example:{port}",
    "10.0.0.1:{port}",
    "127.0.0.1:{port}@evil.example",
    "localhost.:{port}",
    "0.0.0.0:{port}",
    "127.1:{port}",
    "[::]:{port}",
    "127.0.0.1:{port}, evil.example",
    "127.0.0.1:",
    "",
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    home = tmp_path_factory.mktemp("runs")
    write_run(home, RUN)
    with served(home, PoolFeed()) as found:
        yield found


@pytest.fixture
def stranger(site: Served) -> Client:
    return Client(site.server.port)


@pytest.mark.parametrize("path", [*ROUTES, *UNKNOWN])
@pytest.mark.parametrize("method", METHODS)
def test_nothing_is_answered_without_the_cookie(stranger: Client, method: str, path: str) -> None:
    answer = stranger(path, method)
    assert answer.status == 401
    assert method == "HEAD" or b"phalanx watch" in answer.body
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize("path", ROUTES)
def test_all_can_be_read_and_nothing_else(site: Served, path: str) -> None:
    assert site.client(path).status == 200
    head = site.client(path, "HEAD")
    assert (head.status, head.body) == (200, b"")
    for method in METHODS[2:]:
        refused = site.client(path, method)
        assert (refused.status, refused.headers["allow"]) == (405, "GET, HEAD")
    assert site.complaints == []


@pytest.mark.parametrize("path", [*ROUTES, "/enter?token="])
@pytest.mark.parametrize("host", ELSEWHERE)
def test_another_host_is_refused(site: Served, path: str, host: str) -> None:
    told = host.format(port=site.server.port)
    assert site.client(path, Host=told).status == 403
    assert Client(site.server.port)(path, Host=told).status == 403


@pytest.mark.parametrize("path", [*ROUTES, "/enter?token="])
@pytest.mark.parametrize("origin", ["null", "http://evil.example", "https://127.0.0.1:{port}"])
def test_another_origin_is_refused(site: Served, path: str, origin: str) -> None:
    told = origin.format(port=site.server.port)
    assert site.client(path, Origin=told).status == 403
    other_port = f"http://127.0.0.1:{site.server.port + 1}"
    assert site.client(path, Origin=other_port).status == 403


def test_names_of_this_machine_are_accepted(site: Served) -> None:
    port = site.server.port
    for host in (f"127.0.0.1:{port}", f"LOCALHOST:{port}", f"[::1]:{port}"):
        origin = f"http://{host.lower()}"
        assert site.client("/api/runs", Host=host, Origin=origin).status == 200
    # A tunnel may end at another port; the cookie then has that port in its name.
    elsewhere = site.client.headers["Cookie"].replace(str(port), "8000")
    assert site.client("/", Host="localhost:8000", Cookie=elsewhere).status == 200


def test_two_hosts_or_none_are_refused(site: Served) -> None:
    port, cookie = site.server.port, site.client.headers["Cookie"]
    twice = f"Host: 127.0.0.1:{port}\r\nHost: evil.example\r\n"
    for hosts in (twice, ""):
        data = f"GET /api/runs HTTP/1.1\r\n{hosts}Cookie: {cookie}\r\n\r\n"
        status = site.client.raw(data.encode()).split(b" ", 2)[1]
        assert status in (b"400", b"403")
    old = f"GET /api/runs HTTP/1.0\r\nCookie: {cookie}\r\n\r\n"
    assert site.client.raw(old.encode()).split(b" ", 2)[1] == b"403"


def test_a_token_works_once(tmp_path: Path) -> None:
    with served(tmp_path, enter=False) as site:
        entered = site.client.enter(site.addresses[0])
        assert (entered.status, entered.headers["location"]) == (303, "/")
        words = entered.headers["set-cookie"].lower()
        for attribute in ("httponly", "samesite=strict", "path=/", f"max-age={COOKIE_SECONDS}"):
            assert attribute in words
        assert "domain" not in words
        path = site.addresses[0].partition(str(site.server.port))[2]
        assert Client(site.server.port)(path).status == 401, "used"
        assert len(site.addresses) == 2, "the next one is printed"
        assert Client(site.server.port).enter(site.addresses[1]).status == 303


def test_a_look_at_the_headers_uses_no_token(tmp_path: Path) -> None:
    with served(tmp_path, enter=False) as site:
        path = site.addresses[0].partition(str(site.server.port))[2]
        assert site.client(path, "HEAD").status == 401
        assert site.client(path, "POST").status == 401
        assert site.client.enter(site.addresses[0]).status == 303


def test_wrong_tokens_are_refused(tmp_path: Path) -> None:
    with served(tmp_path, enter=False) as site:
        wrong = ["", "a", "%00", "%ff%fe", "x" * 1500, "1&token=2", site.server.port]
        answers = [site.client(f"/enter?token={each}").status for each in wrong]
        assert answers == [401] * len(wrong)
        assert site.client.enter(site.addresses[0]).status == 303


def gate(secret: bytes) -> PageGate:
    return PageGate(Response(), secret, lambda: None)


def test_a_cookie_cannot_be_made_or_changed() -> None:
    access, other = gate(b"a" * 32), gate(b"b" * 32)
    cookie = access.exchange(access.token)
    assert cookie is not None
    assert access.admits(cookie)
    assert not other.admits(cookie)
    ends, rest = cookie.split(".", 1)
    changed = [f"{int(ends) + 1}.{rest}", cookie[:-1], cookie + "0", "", ".", "..", "0.0.0", "é.é"]
    assert not any(access.admits(each) for each in changed)


def test_a_cookie_runs_out(monkeypatch: pytest.MonkeyPatch) -> None:
    access = gate(b"a" * 32)
    cookie = access.exchange(access.token)
    assert cookie is not None
    import time

    now = time.time()
    for later, valid in ((COOKIE_SECONDS - 5, True), (COOKIE_SECONDS + 5, False), (-3600, False)):
        monkeypatch.setattr("phalanx.watch.access.time.time", lambda later=later: now + later)
        assert access.admits(cookie) is valid


def test_the_next_server_knows_the_cookie(tmp_path: Path) -> None:
    with served(tmp_path) as first:
        cookie = first.client.headers["Cookie"].partition("=")[2]
    with served(tmp_path, enter=False) as second:
        named = f"phalanx-{second.server.port}={cookie}"
        assert second.client("/api/runs", Cookie=named).status == 200
        assert second.client("/api/runs", Cookie=f"phalanx={cookie}").status == 401


def test_the_secret_is_private_and_differs_by_purpose() -> None:
    assert user_secret("watch") == user_secret("watch") != user_secret("other")
    about = key_file().stat()
    assert (about.st_mode & 0o777, about.st_uid) == (0o600, os.geteuid())


@pytest.mark.parametrize("path", [*ROUTES, *UNKNOWN])
def test_every_answer_has_the_headers(site: Served, path: str) -> None:
    for client in (site.client, Client(site.server.port)):
        headers = client(path).headers
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'self';")
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert headers["cache-control"] == "no-store"
        assert "access-control-allow-origin" not in headers
        assert "server" not in headers


def test_the_locked_page_may_ask_once_more(stranger: Client) -> None:
    """A browser keeps the new cookie back while it follows a link of another site."""
    answer = stranger("/")
    script = answer.body.partition(b"<script>")[2].partition(b"</script>")[0]
    code = base64.b64encode(hashlib.sha256(script).digest()).decode()
    assert f"script-src 'self' 'sha256-{code}'" in answer.headers["content-security-policy"]
