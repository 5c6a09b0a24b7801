"""What may be asked for: no parameter leads out of the runs' folder, and text is only ever JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from made_runs import write_run, write_study
from watch_client import Served, served

RUN = "20250102-000000-made"
STUDY = "20250102-000001-study"
MARKUP = "<img src=x onerror=alert(1)>"
SECRET = "no page may show this"
OUT_OF_HERE = (
    "..",
    ".",
    "",
    "%2e%2e",
    "%252e%252e",
    "..%2f..%2fetc%2fpasswd",
    "%2e%2e%2f%2e%2e%2fsecret",
    "..%252fsecret",
    "%2fetc%2fpasswd",
    "%5c..%5csecret",
    "..%5csecret",
    f"{RUN}%00",
    f"{RUN}%2f..%2f..%2fsecret",
    f"{RUN}%2f..",
    f"{RUN}%5c..%5c..%5csecret",
    "..:secret",
    f"{RUN}:..",
    f"{STUDY}:..%2fsecret",
    f":{RUN}",
    f"{RUN}:",
    "a:b:c",
    "%c0%ae%c0%ae%2fsecret",
    "%ef%bc%8e%ef%bc%8e",
    ".hidden",
    "link-out",
    "link-up",
    "linked-launch",
    f"{STUDY}:link-out",
    "a" * 256,
    "~",
    "%0d%0aX-Injected:%201",
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    top = tmp_path_factory.mktemp("all")
    home = top / "runs"
    write_run(home, RUN, logged={MARKUP: 1.0}, script=f"{MARKUP}.py", machines=("here", "<b>m"))
    write_study(home, STUDY, [RUN])
    write_run(top, "secret")
    (top / "secret" / "logs" / "rank-0.log").write_text(SECRET)
    write_run(home, ".hidden")
    (home / "link-out").symlink_to(top / "secret")
    (home / "link-up").symlink_to(top)
    (home / STUDY / "link-out").symlink_to(top / "secret")
    write_run(home, "linked-launch")
    (home / "linked-launch" / "launch.json").unlink()
    (home / "linked-launch" / "launch.json").symlink_to(top / "secret" / "launch.json")
    (home / RUN / "logs" / "rank-0.log").write_text(
        "<script>alert(1)</script>\n\x1b[31mred\x1b[0m\n"
    )
    (home / RUN / "logs" / "rank-1.log").symlink_to(top / "secret" / "logs" / "rank-0.log")
    with served(home) as found:
        yield found


@pytest.mark.parametrize("name", OUT_OF_HERE)
@pytest.mark.parametrize(
    "where", ["", "/charts", "/cluster", "/timeline", "/log/0", "/csv/loss", "/stream"]
)
def test_no_run_is_found_elsewhere(site: Served, name: str, where: str) -> None:
    answer = site.client(f"/api/run/{name}{where}")
    if name == "linked-launch":  # a folder of ours whose record is a link: nothing of it is shown
        assert SECRET.encode() not in answer.body
        return
    assert answer.status in (400, 404)
    assert SECRET.encode() not in answer.body
    assert "x-injected" not in answer.headers
    assert len(answer.body.splitlines()) <= 1


@pytest.mark.parametrize(
    "name", [name for name in OUT_OF_HERE if name not in ("", "linked-launch")]
)
def test_no_other_parameter_leads_elsewhere(site: Served, name: str) -> None:
    for path in (
        f"/api/compare?runs={name}",
        f"/api/compare?runs={RUN},{name}",
        f"/api/run/{RUN}/log/{name}",
        f"/api/run/{RUN}/csv/{name}",
        f"/static/{name}",
        f"/static/vendor/{name}",
        f"/{name}/x",
    ):
        answer = site.client(path)
        assert answer.status in (400, 404), path
        assert len(answer.body.splitlines()) == 1
    for path in (f"/api/runs?before={name}", f"/api/compare?runs={RUN}&chart={name}"):
        answer = site.client(path)
        assert answer.status in (200, 400, 404), path
        assert SECRET.encode() not in answer.body


def test_a_log_that_is_a_link_is_not_followed(site: Served) -> None:
    answer = site.client(f"/api/run/{RUN}/log/1")
    assert SECRET.encode() not in answer.body


@pytest.mark.parametrize(
    "query",
    [
        "points=0", "points=1e9", "points=-5", "points=99999999999", "points=600x", "points=",
        "points=%D9%A3", "points=10&points=20", "from=nan", "from=inf", "to=1e999", "from=0x10",
        "from=5&to=4", "by=rank", "by=..", "from=1_000", "from=%00", "from=--1",
    ],
)  # fmt: skip
def test_wrong_numbers_are_refused_in_one_line(site: Served, query: str) -> None:
    answer = site.client(f"/api/run/{RUN}/charts?{query}")
    assert answer.status == 400
    assert len(answer.json["error"].splitlines()) == 1


@pytest.mark.parametrize(
    "path",
    [
        f"/api/run/{RUN}/log/-1", f"/api/run/{RUN}/log/1.5", f"/api/run/{RUN}/log/0?lines=0",
        f"/api/run/{RUN}/log/0?lines=1000000", "/api/runs?limit=0", "/api/runs?limit=9999",
        f"/api/run/{RUN}/cluster?points=1", f"/api/run/{RUN}/timeline?points=1",
        f"/api/run/{RUN}/timeline?from=1&to=0", "/api/compare", "/api/compare?runs=,,",
        "/api/compare?runs=" + ",".join([RUN] * 13), f"/api/compare?runs={RUN}&by=x",
    ],
)  # fmt: skip
def test_wrong_parameters_are_refused(site: Served, path: str) -> None:
    assert site.client(path).status == 400


def test_long_addresses_are_refused(site: Served) -> None:
    for path in (f"/api/runs?before={'a' * 2001}", f"/api/runs?{'a=1&' * 600}"):
        assert site.client(path).status == 400
    head = b"GET /api/runs?" + b"a" * 200_000 + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    answer = site.client.raw(head)
    assert not answer or answer.split(b" ", 2)[1] == b"400", "it does not read on"
    assert site.client("/api/runs").status == 200


def test_text_of_a_run_is_only_ever_json_text(site: Served) -> None:
    for path in ("", "/charts?by=epoch", "/cluster", "/timeline", "/log/0"):
        answer = site.client(f"/api/run/{RUN}{path}")
        assert answer.status == 200, path
        assert answer.headers["content-type"] == "application/json"
        json.loads(answer.body, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    charts = site.client(f"/api/run/{RUN}/charts?by=epoch").json["charts"]
    assert MARKUP in json.dumps(charts)
    log = site.client(f"/api/run/{RUN}/log/0").json
    assert log["lines"][0] == "<script>alert(1)</script>"
    assert "\x1b" not in "".join(log["lines"])
    for path in (f"/api/run/{quote(MARKUP, safe='')}", f"/static/{quote(MARKUP, safe='')}"):
        answer = site.client(path)
        assert answer.headers["content-type"] == "application/json"
        assert b"<" not in answer.body


def test_a_csv_is_a_download(site: Served) -> None:
    answer = site.client(f"/api/run/{RUN}/csv/loss")
    assert answer.headers["content-type"].startswith("text/csv")
    assert answer.headers["content-disposition"] == f'attachment; filename="{RUN}-loss.csv"'
    assert site.client(f"/api/run/{RUN}/csv/no-such-chart").status == 404


def test_only_files_of_the_pages_are_given_out(site: Served) -> None:
    for name in ("app.js", "style.css"):
        assert site.client(f"/static/{name}").status == 200
    for name in ("../app.py", "%2e%2e/app.py", "..%2fapp.py", "/etc/passwd", "__init__.py", ""):
        assert site.client(f"/static/{name}").status in (400, 404)


def test_a_study_s_run_has_both_names(site: Served, tmp_path: Path) -> None:
    write_run(tmp_path / STUDY, RUN)
    write_study(tmp_path, "other", [])
    with served(tmp_path) as found:
        assert found.client(f"/api/run/{STUDY}:{RUN}").status == 200
