"""The routes: what pages ask for, checked, and answered as JSON, text or a stream. Nothing here
changes a run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from phalanx.core.errors import InputError
from phalanx.core.run_folder.run_paths import slug
from phalanx.watch.feed.reading.log_tail import MOST_LINES
from phalanx.watch.feed.run_feed import RunFeed, compare, csv_of
from phalanx.watch.feed.runs_list import UnknownRun
from phalanx.watch.library import NEWEST, Library, Look

FILES = Path(__file__).parent / "static"
MOST_COMPARED = 12
Number = Annotated[float, Meta(ge=-1e12, le=1e12)]


class Asked(msgspec.Struct, frozen=True):
    """What a page may ask for, in an address's path and query."""

    run: str = ""
    runs: str = ""
    chart: str | None = None
    rank: Annotated[int, Meta(ge=0, le=1 << 20)] = 0
    by: Literal["time", "step", "epoch"] = "time"
    points: Annotated[int, Meta(ge=2, le=5000)] = 600
    first: Number | None = msgspec.field(name="from", default=None)
    last: Number | None = msgspec.field(name="to", default=None)
    lines: Annotated[int, Meta(ge=1, le=MOST_LINES)] = 200
    limit: Annotated[int, Meta(ge=1, le=NEWEST)] = NEWEST
    before: str | None = None

    def __post_init__(self) -> None:
        if self.first is not None and self.last is not None and self.first > self.last:
            raise ValueError("'from' must not be after 'to'")


def asked_by(request: Request) -> Asked:
    given = request.query_params
    if len(given) < len(given.multi_items()):
        raise HTTPException(400, "a parameter is given more than once")
    try:
        return msgspec.convert({**given, **request.path_params}, Asked, strict=False)
    except msgspec.ValidationError as error:
        raise HTTPException(400, str(error)) from None


class Json(Response):
    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return content if isinstance(content, bytes) else msgspec.json.encode(content)


OF_A_RUN: dict[str, Callable[[RunFeed, Asked], Any]] = {
    "": lambda feed, asked: feed.view(),
    "/charts": lambda feed, asked: {
        "charts": feed.charts(asked.by, asked.points, asked.first, asked.last)
    },
    "/cluster": lambda feed, asked: feed.cluster(asked.points),
    "/timeline": lambda feed, asked: feed.timeline(asked.first, asked.last, asked.points),
    "/log/{rank}": lambda feed, asked: feed.log(asked.rank, asked.lines),
}
"""What is told of one run, by the end of its address."""


class Routes:
    """The answers of one server. All files of runs are read in the library's thread."""

    def __init__(self, library: Library) -> None:
        self._library = library

    def table(self) -> list[BaseRoute]:
        one = "/api/run/{run}"
        answers: dict[str, Callable[[Request], Awaitable[Response]]] = {
            "/": self.index,
            "/api/runs": self.runs,
            "/api/stream": self.stream_all,
            "/api/compare": self.compare,
            "/api/pool": self.pool,
            f"{one}/csv/{{chart}}": self.csv,
            f"{one}/stream": self.stream,
            **{one + end: partial(self.of_run, end) for end in OF_A_RUN},
        }
        routes = [Route(path, answer, methods=["GET"]) for path, answer in answers.items()]
        return [*routes, Mount("/static", StaticFiles(directory=FILES))]

    async def index(self, request: Request) -> Response:
        return FileResponse(FILES / "index.html")

    async def of_run(self, end: str, request: Request) -> Response:
        asked = asked_by(request)

        def make(feed: RunFeed) -> Any:
            return OF_A_RUN[end](feed, asked)

        return Json(await self._library.ask(self._library.answer, asked.run, (end, asked), make))

    async def csv(self, request: Request) -> Response:
        asked = asked_by(request)

        def make() -> str | None:
            feed = self._library.fresh(asked.run).feed
            charts = [*feed.charts(asked.by, asked.points), *feed.cluster(asked.points).charts]
            return next((csv_of(chart) for chart in charts if chart.name == asked.chart), None)

        text = await self._library.ask(make)
        if text is None:
            raise HTTPException(404, "there is no such chart")
        file = f"{slug(asked.run)}-{slug(asked.chart or '')}.csv"
        headers = {"content-disposition": f'attachment; filename="{file}"'}
        return Response(text, media_type="text/csv", headers=headers)

    async def runs(self, request: Request) -> Response:
        asked = asked_by(request)
        return Json(await self._library.ask(self._library.runs, asked.limit, asked.before))

    async def compare(self, request: Request) -> Response:
        asked = asked_by(request)
        runs = [run for run in asked.runs.split(",") if run]
        if not 1 <= len(runs) <= MOST_COMPARED:
            raise HTTPException(400, f"'runs' must name 1 to {MOST_COMPARED} runs")

        def make() -> Any:
            feeds = [self._library.fresh(run).feed for run in runs]
            found = compare(feeds, asked.by, asked.points)
            kept = [chart for chart in found.charts if asked.chart in (None, chart.name)]
            return msgspec.structs.replace(found, charts=kept)

        return Json(await self._library.ask(make))

    async def pool(self, request: Request) -> Response:
        asked, feed = asked_by(request), self._library.pool
        if feed is None:
            raise HTTPException(404, "no pool is shown")
        return Json(await self._library.ask(feed.view, asked.points))

    async def stream(self, request: Request) -> Response:
        look = partial(self._library.look_at_run, asked_by(request).run)
        await self._library.ask(look)  # an unknown one is answered with 404
        return self._watched(request, look)

    async def stream_all(self, request: Request) -> Response:
        return self._watched(request, self._library.look_at_all)

    def _watched(self, request: Request, look: Callable[[], Look]) -> Response:
        if request.method == "HEAD":
            return Response(media_type="text/event-stream")
        return StreamingResponse(self._library.events(look), media_type="text/event-stream")


def make_app(library: Library, complain: Callable[[str], None]) -> Starlette:
    """Return the application; ``complain`` is given a line for each kind of error of our own."""
    known: set[type[Exception]] = set()

    def told(request: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException):
            return Json({"error": error.detail}, error.status_code)
        if isinstance(error, UnknownRun):
            return Json({"error": "there is no such run"}, 404)
        if isinstance(error, InputError):
            return Json({"error": error.cause}, 500)
        if type(error) not in known:
            known.add(type(error))
            complain(f"a page could not be made: {type(error).__name__}: {error}")
        return Json({"error": "the window of 'phalanx watch' says why this cannot be read"}, 500)

    kinds: tuple[Any, ...] = (HTTPException, InputError, Exception)
    app = Starlette(routes=Routes(library).table(), exception_handlers=dict.fromkeys(kinds, told))
    app.router.redirect_slashes = False
    return app
