"""The routes: what pages ask for, checked, and answered as JSON, text or a stream. Nothing here
changes a run."""

from __future__ import annotations

import math
import re
from collections.abc import Awaitable, Callable
from functools import partial
from importlib import resources
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from phalanx.core.errors import InputError
from phalanx.core.run_folder.run_paths import slug
from phalanx.watch.feed.reading.log_tail import MOST_LINES
from phalanx.watch.feed.run_feed import compare, csv_of
from phalanx.watch.feed.runs_list import UnknownRun
from phalanx.watch.library import NEWEST, Library
from phalanx.watch.streams import EventStream, OpenPages, ReadingThread

KINDS = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
}
"""The files of the pages that are given out, by the end of their names."""
AXES = ("time", "step", "epoch")
MOST_POINTS, MOST_COMPARED = 5000, 12
MOST_WORKERS = 1 << 20
_RUN = re.compile(r"[^/\\\x00-\x1f\x7f:.][^/\\\x00-\x1f\x7f:]{0,254}")
_WHOLE = re.compile(r"[0-9]{1,9}", re.ASCII)
_NUMBER = re.compile(r"-?[0-9]{1,12}(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,2})?", re.ASCII)

Answer = Callable[[Request], Awaitable[Response]]


class BadRequest(Exception):  # noqa: N818  (what came)
    """A parameter is not what it must be."""


class Routes:
    """The answers of one server. All files are read in its reading thread."""

    def __init__(self, library: Library, thread: ReadingThread, streams: OpenPages) -> None:
        self._library, self._thread, self._streams = library, thread, streams
        self._files = page_files()

    def table(self) -> list[Route]:
        one = "/api/run/{run}"
        answers: dict[str, Answer] = {
            "/": self.index,
            "/static/{name}": self.static,
            "/api/runs": self.runs,
            "/api/stream": self.stream_all,
            "/api/compare": self.compare,
            "/api/pool": self.pool,
            one: self.run,
            f"{one}/charts": self.charts,
            f"{one}/cluster": self.cluster,
            f"{one}/timeline": self.timeline,
            f"{one}/log/{{rank}}": self.log,
            f"{one}/csv/{{chart}}": self.csv,
            f"{one}/stream": self.stream,
        }
        return [Route(path, answer, methods=["GET"]) for path, answer in answers.items()]

    async def index(self, request: Request) -> Response:
        return self._file("index.html")

    async def static(self, request: Request) -> Response:
        return self._file(request.path_params["name"])

    def _file(self, name: str) -> Response:
        if name not in self._files:
            raise HTTPException(404)
        kind = KINDS[name.rpartition(".")[2]]
        return Response(self._files[name], media_type=kind, headers={"cache-control": "no-cache"})

    async def runs(self, request: Request) -> Response:
        limit = whole(request, "limit", NEWEST, 1, NEWEST)
        before = given(request, "before")
        if before is not None:
            run_id(before)
        return _json(await self._thread.ask(lambda: _encoded(self._library.runs(limit, before))))

    async def run(self, request: Request) -> Response:
        run = run_id(request.path_params["run"])
        return _json(await self._thread.ask(lambda: _encoded(self._library.about(run))))

    async def charts(self, request: Request) -> Response:
        by, points = choice(request, "by", AXES), whole(request, "points", 600, 2, MOST_POINTS)
        first, last = span(request)
        key = ("charts", by, points, first, last)
        return await self._of_run(
            request, key, lambda feed: {"charts": feed.charts(by, points, first, last)}
        )

    async def cluster(self, request: Request) -> Response:
        points = whole(request, "points", 300, 2, MOST_POINTS)
        return await self._of_run(request, ("cluster", points), lambda feed: feed.cluster(points))

    async def timeline(self, request: Request) -> Response:
        points = whole(request, "points", 600, 2, MOST_POINTS)
        first, last = span(request)
        key = ("timeline", points, first, last)
        return await self._of_run(request, key, lambda feed: feed.timeline(first, last, points))

    async def log(self, request: Request) -> Response:
        rank = read_whole("rank", request.path_params["rank"], 0, MOST_WORKERS)
        lines = whole(request, "lines", 200, 1, MOST_LINES)
        run = run_id(request.path_params["run"])

        def read() -> bytes:
            return _encoded(self._library.kept(run).feed.log(rank, lines))

        return _json(await self._thread.ask(read))

    async def csv(self, request: Request) -> Response:
        run, name = run_id(request.path_params["run"]), request.path_params["chart"]
        by, points = choice(request, "by", AXES), whole(request, "points", 600, 2, MOST_POINTS)

        def read() -> str:
            feed = self._library.fresh(run).feed
            charts = [*feed.charts(by, points, None, None), *feed.cluster(points).charts]
            found = next((chart for chart in charts if chart.name == name), None)
            if found is None:
                raise HTTPException(404)
            return csv_of(found)

        text = await self._thread.ask(read)
        file = f"{slug(run)}-{slug(name)}.csv"
        headers = {"content-disposition": f'attachment; filename="{file}"'}
        return Response(text, media_type="text/csv; charset=utf-8", headers=headers)

    async def compare(self, request: Request) -> Response:
        by, points = choice(request, "by", AXES), whole(request, "points", 600, 2, MOST_POINTS)
        runs = [run_id(part) for part in (given(request, "runs") or "").split(",") if part]
        if not 1 <= len(runs) <= MOST_COMPARED:
            raise BadRequest(f"'runs' must name 1 to {MOST_COMPARED} runs")
        chart = given(request, "chart")

        def read() -> bytes:
            found = compare([self._library.fresh(run).feed for run in runs], by, points)
            if chart is not None:
                kept = [each for each in found.charts if each.name == chart]
                found = msgspec.structs.replace(found, charts=kept)
            return _encoded(found)

        return _json(await self._thread.ask(read))

    async def pool(self, request: Request) -> Response:
        points, feed = whole(request, "points", 300, 2, MOST_POINTS), self._library.pool
        if feed is None:
            raise HTTPException(404)
        return _json(await self._thread.ask(lambda: _encoded(feed.view(points))))

    async def stream(self, request: Request) -> Response:
        run = run_id(request.path_params["run"])
        await self._thread.ask(self._library.kept, run)  # an unknown one is answered with 404
        return self._watched(f"run {run}", partial(self._library.look_at_run, run))

    async def stream_all(self, request: Request) -> Response:
        return self._watched("all", self._library.look_at_all)

    def _watched(self, name: str, look: Callable[[], Any]) -> Response:
        if not self._streams.has_room():
            raise HTTPException(503)
        return EventStream(self._streams.subject(name, look))

    async def _of_run(
        self, request: Request, key: tuple[Any, ...], make: Callable[[Any], Any]
    ) -> Response:
        run = run_id(request.path_params["run"])
        return _json(await self._thread.ask(self._library.answer, run, key, make))


def make_app(
    library: Library, thread: ReadingThread, streams: OpenPages, complain: Callable[[str], None]
) -> Starlette:
    """Return the application; ``complain`` is given a line for each kind of error of our own."""
    known: set[str] = set()

    def failed(request: Request, error: Exception) -> Response:
        text = f"{type(error).__name__}: {error}"
        if text not in known and len(known) < 20:
            known.add(text)
            complain(f"a page could not be made: {text}")
        return _told(500, "this could not be read; the window of 'phalanx watch' says why")

    def refused(request: Request, error: Exception) -> Response:
        return _told(400, str(error))

    def unreadable(request: Request, error: Exception) -> Response:
        return _told(500, error.cause if isinstance(error, InputError) else "")

    def unknown(request: Request, error: Exception) -> Response:
        return _told(404, "there is no such run")

    def other(request: Request, error: Exception) -> Response:
        code = error.status_code if isinstance(error, HTTPException) else 500
        words = {404: "there is no such page", 503: "too many pages are open"}
        return _told(code, words.get(code, "this cannot be answered"))

    handlers: dict[Any, Any] = {
        BadRequest: refused,
        InputError: unreadable,
        UnknownRun: unknown,
        HTTPException: other,
        Exception: failed,
    }
    app = Starlette(routes=Routes(library, thread, streams).table(), exception_handlers=handlers)
    app.router.redirect_slashes = False
    return app


def page_files() -> dict[str, bytes]:
    """Return the files of the pages by name: no other file is ever given out."""
    folder = resources.files("phalanx.watch") / "static"
    return {
        file.name: file.read_bytes()
        for file in folder.iterdir()
        if file.name.rpartition(".")[2] in KINDS
    }


def run_id(text: str) -> str:
    """Return a run's name, ``RUN`` or ``STUDY:RUN``, unless it could lead elsewhere."""
    parts = text.split(":")
    if len(parts) > 2 or not all(_RUN.fullmatch(part) for part in parts):
        raise BadRequest("this is not the name of a run")
    return text


def given(request: Request, name: str) -> str | None:
    found = request.query_params.getlist(name)
    if len(found) > 1:
        raise BadRequest(f"'{name}' is given more than once")
    return found[0] if found else None


def whole(request: Request, name: str, default: int, least: int, most: int) -> int:
    text = given(request, name)
    return default if text is None else read_whole(name, text, least, most)


def read_whole(name: str, text: str, least: int, most: int) -> int:
    if not _WHOLE.fullmatch(text) or not least <= int(text) <= most:
        raise BadRequest(f"'{name}' must be a whole number from {least} to {most}")
    return int(text)


def span(request: Request) -> tuple[float | None, float | None]:
    """Return the ends of the part that a page shows; ``None`` where it shows all."""
    first, last = (_number(request, name) for name in ("from", "to"))
    if first is not None and last is not None and first > last:
        raise BadRequest("'from' must not be after 'to'")
    return first, last


def _number(request: Request, name: str) -> float | None:
    text = given(request, name)
    if text is None:
        return None
    if not _NUMBER.fullmatch(text) or not math.isfinite(float(text)):
        raise BadRequest(f"'{name}' must be a number")
    return float(text)


def choice(request: Request, name: str, options: tuple[str, ...]) -> str:
    """Return one of ``options``, by default the first."""
    text = given(request, name) or options[0]
    if text not in options:
        raise BadRequest(f"'{name}' must be one of {', '.join(options)}")
    return text


def _encoded(value: Any) -> bytes:
    return msgspec.json.encode(value)


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")


def _told(status: int, text: str) -> Response:
    return JSONResponse({"error": text}, status)
