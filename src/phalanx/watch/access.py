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
from collections.abc import Callable

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE_SECONDS = 12 * 3600
LONGEST_QUERY = 2000
_HOST = re.compile(r"(?:127\.0\.0\.1|localhost|\[::1\])(?::(?P<port>\d{1,5}))?", re.ASCII)
_LABEL = b"phalanx watch session 1 "
_ODD = re.compile(r"[\x00-\x1f\x7f\\]")
# A browser that follows a link of another site, such as a terminal in a web page, keeps a strict
# cookie back once. This page then asks again, and is of this site; only a script knows the end of
# the address, which says what to show.
_ONCE_MORE = "location.href.includes('?') || location.replace('/?' + location.hash)"
_ONCE_MORE_HASH = base64.b64encode(hashlib.sha256(_ONCE_MORE.encode()).digest()).decode()
LOCKED = f"""<!doctype html><html lang=en><meta charset=utf-8><title>Phalanx</title>
<script>{_ONCE_MORE}</script>
<p>This page needs a cookie, and each address gives one once.
Start 'phalanx watch' again, and open the address that it prints."""
HEADERS = {
    "content-security-policy": f"default-src 'self'; script-src 'self' 'sha256-{_ONCE_MORE_HASH}'; "
    "base-uri 'none'; form-action 'self'; object-src 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class PageGate:
    """Passes on what may be answered; everything else is refused before it is looked at."""

    def __init__(self, app: ASGIApp, secret: bytes, used: Callable[[], None]) -> None:
        """``secret`` signs the cookies; ``used`` is called when there is a new token."""
        self._app, self._secret, self._used = app, secret, used
        self.token = secrets.token_urlsafe(32)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        await (self._refusal(Request(scope)) or self._app)(scope, receive, with_headers)

    def exchange(self, given: str) -> str | None:
        """Return a cookie's value for the present token, which is then used up."""
        if not secrets.compare_digest(given.encode(), self.token.encode()):
            return None
        self.token = secrets.token_urlsafe(32)
        self._used()
        ends = str(int(time.time()) + COOKIE_SECONDS)
        return f"{ends}.{self._code(ends)}"

    def admits(self, cookie: str) -> bool:
        """Whether ``cookie`` is one of this user's that has not run out."""
        ends, _, code = cookie.partition(".")
        if not secrets.compare_digest(code.encode(), self._code(ends).encode()):
            return False
        return 0 < int(ends) - time.time() <= COOKIE_SECONDS

    def _code(self, text: str) -> str:
        return hmac.new(self._secret, _LABEL + text.encode(), hashlib.sha256).hexdigest()

    def _refusal(self, request: Request) -> Response | None:
        hosts = request.headers.getlist("host")
        host = _HOST.fullmatch(hosts[0].lower()) if len(hosts) == 1 else None
        if host is None:
            return _refused(403, "this address is not of this machine's loopback")
        origins = request.headers.getlist("origin")
        if any(origin.lower() != f"http://{host[0]}" for origin in origins):
            return _refused(403, "another site asks for this page")
        path, query = request.scope["path"], request.scope["query_string"]
        if len(query) > LONGEST_QUERY or _ODD.search(path):
            return _refused(400, "the address is too long or has characters of no address")
        # The cookie is the port's own: a browser keeps cookies by host, and two servers, perhaps
        # on two machines, would take each other's away.
        name = f"phalanx-{host['port'] or 80}"
        admitted = self.admits(request.cookies.get(name, ""))
        if path == "/enter" and request.method == "GET":
            return RedirectResponse("/", 303) if admitted else self._enter(request, name)
        if not admitted:
            return HTMLResponse(LOCKED, 401)
        if request.method not in ("GET", "HEAD"):
            return _refused(405, "these pages can only be read", {"allow": "GET, HEAD"})
        return None

    def _enter(self, request: Request, name: str) -> Response:
        cookie = self.exchange(request.query_params.get("token", ""))
        if cookie is None:
            return HTMLResponse(LOCKED, 401)
        answer = RedirectResponse("/", 303)
        answer.set_cookie(name, cookie, COOKIE_SECONDS, httponly=True, samesite="strict")
        return answer


def _refused(status: int, text: str, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"error": text}, status, headers)
