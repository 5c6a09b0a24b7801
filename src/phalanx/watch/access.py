"""Who may read the pages: a token that works once becomes a cookie, and addresses are checked.

Other users of this machine reach its loopback too, and so do web pages in the user's own browser:
the first have no token; the second have another ``Host`` (a name that was made to lead here) or
another ``Origin``. Nothing here looks up a name, or writes a token or a cookie anywhere.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
import time
from collections import deque
from collections.abc import Callable
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE_SECONDS = 12 * 3600
MOST_WRONG, WRONG_SECONDS = 10, 10.0
"""The wrong tokens that are answered within so many seconds; others are not looked at."""
LONGEST_QUERY = 2000
_HOST = re.compile(r"(?:127\.0\.0\.1|localhost|\[::1\])(?::(?P<port>\d{1,5}))?", re.ASCII)
_LABEL = b"phalanx watch session 1 "
_ODD = re.compile(r"[\x00-\x1f\x7f\\]")

HEADERS = {
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'self'; "
    "object-src 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}
AGAIN = "Start 'phalanx watch' again, and open the address that it prints."
_PAGE = "<!doctype html><html lang=en><meta charset=utf-8><title>Phalanx</title>{head}<p>{text}"
_ONCE_MORE = "location.replace('/?' + location.hash)"
_ONCE_MORE_HASH = base64.b64encode(hashlib.sha256(_ONCE_MORE.encode()).digest()).decode()


class Access:
    """The present token, and the cookies that were given for earlier ones."""

    def __init__(self, secret: bytes, used: Callable[[], None]) -> None:
        """``secret`` signs the cookies; ``used`` is called when there is a new token."""
        self._secret, self._used = secret, used
        self._wrong: deque[float] = deque(maxlen=MOST_WRONG)
        self.token = secrets.token_urlsafe(32)

    def is_flooded(self) -> bool:
        """Whether so many wrong tokens came of late that none is looked at for a while."""
        wrong = self._wrong
        return len(wrong) == MOST_WRONG and time.monotonic() - wrong[0] < WRONG_SECONDS

    def exchange(self, given: str) -> str | None:
        """Return a cookie's value for the present token, which is then used up."""
        if not secrets.compare_digest(given.encode(), self.token.encode()):
            self._wrong.append(time.monotonic())
            return None
        self.token = secrets.token_urlsafe(32)
        self._used()
        text = f"{int(time.time()) + COOKIE_SECONDS}.{secrets.token_hex(8)}"
        return f"{text}.{self._code(text)}"

    def admits(self, value: str) -> bool:
        """Whether ``value`` is a cookie of this user's that has not run out."""
        text, _, code = value.rpartition(".")
        if not secrets.compare_digest(code.encode(), self._code(text).encode()):
            return False
        ends = int(text.partition(".")[0])
        return 0 < ends - time.time() <= COOKIE_SECONDS

    def _code(self, text: str) -> str:
        return hmac.new(self._secret, _LABEL + text.encode(), hashlib.sha256).hexdigest()


class PageGate:
    """Passes on what may be answered; everything else is refused before it is looked at."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        answer = self._refusal(scope, Headers(scope=scope))

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("cache-control", "no-store")
            await send(message)

        await (answer or self._app)(scope, receive, with_headers)

    def _refusal(self, scope: Scope, headers: Headers) -> Response | None:
        hosts = headers.getlist("host")
        host = _HOST.fullmatch(hosts[0].lower()) if len(hosts) == 1 else None
        if host is None:
            return _line(scope, 403, "this address is not of this machine's loopback")
        if any(origin.lower() != f"http://{host[0]}" for origin in headers.getlist("origin")):
            return _line(scope, 403, "another site asks for this page")
        if len(scope["query_string"]) > LONGEST_QUERY or _ODD.search(scope["path"]):
            return _line(scope, 400, "the address is too long or has characters of no address")
        name = f"phalanx-{host['port'] or 80}"
        admitted = any(self._access.admits(value) for value in _cookies(headers, name))
        if scope["path"] == "/enter" and scope["method"] == "GET":
            return RedirectResponse("/", 303) if admitted else self._enter(scope, name)
        if not admitted:
            return _unknown(scope, headers)
        if scope["method"] not in ("GET", "HEAD"):
            refused = _line(scope, 405, "these pages can only be read")
            refused.headers["allow"] = "GET, HEAD"
            return refused
        return None

    def _enter(self, scope: Scope, name: str) -> Response:
        """Give a cookie for the right token. It is the port's own: a browser keeps cookies by host,
        and two servers, perhaps on two machines, would take each other's away."""
        if self._access.is_flooded():
            return _line(scope, 429, "there were too many wrong tokens; try again in a while")
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])
        cookie = self._access.exchange(given[0])
        if cookie is None:
            return _line(scope, 401, f"this address has been used, or is wrong. {AGAIN}")
        answer = RedirectResponse("/", 303)
        answer.set_cookie(
            name, cookie, max_age=COOKIE_SECONDS, path="/", httponly=True, samesite="strict"
        )
        return answer


def _cookies(headers: Headers, name: str) -> list[str]:
    parts = (part.strip().partition("=") for part in headers.get("cookie", "").split(";"))
    return [value for key, _, value in parts if key == name]


def _unknown(scope: Scope, headers: Headers) -> Response:
    """Say how to get in. A browser that follows a link of another site, such as a terminal in a web
    page, keeps a strict cookie back once: then this page asks again, and is of this site. Only a
    script knows the end of the address, which says what to show."""
    foreign = headers.get("sec-fetch-site") == "cross-site"
    again = foreign and scope["path"] == "/"
    head = f"<script>{_ONCE_MORE}</script>" if again else ""
    answer = _line(scope, 401, f"this page needs a cookie. {AGAIN}", head)
    if again:
        only = f"default-src 'none'; script-src 'sha256-{_ONCE_MORE_HASH}'"
        answer.headers["content-security-policy"] = only
    return answer


def _line(scope: Scope, status: int, text: str, head: str = "") -> Response:
    """Answer in one line: an object for programs, a page for people."""
    if scope["path"].startswith(("/api/", "/static/")):
        return JSONResponse({"error": text}, status)
    return HTMLResponse(_PAGE.format(head=head, text=text[:1].upper() + text[1:]), status)
