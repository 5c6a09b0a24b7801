"""Write ``report.html``, one file that loads nothing and runs no script, and its figures."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2
from markupsafe import Markup

from phalanx import __version__
from phalanx.core import words
from phalanx.core.errors import InputError
from phalanx.core.files import write_whole
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.core.settings import mark
from phalanx.report.load import StudyData, load_study
from phalanx.report.sections import Plot, Section, make_sections
from phalanx.report.study_verdict import verdict_on

_TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class Drawn:
    """A plot, drawn once for the page and for its files."""

    plot: Plot
    svg: str

    def inline(self) -> Markup:
        from phalanx.report.plots.drawing import inline_svg

        # The drawing library escapes the labels it writes, so its SVG is safe as it is.
        return Markup(inline_svg(self.svg, self.plot.name, self.plot.caption))


def write_report(paths: RunPaths) -> Path:
    """Write the report of a run or a study, finished or not, and return its path."""
    study = load_study(paths)
    sections = make_sections(study)
    drawn = draw(sections)
    text = render(study, sections, drawn)
    try:
        paths.report.parent.mkdir(parents=True, exist_ok=True)
        write_whole(paths.report, text)
        files = dict(file for section in sections for file in section.files)
        _write_figures(paths.figures, drawn, files)
    except OSError as error:
        raise InputError(
            f"cannot write the report {paths.report}: {error.strerror}",
            "Check that you may write to the run's folder.",
        ) from error
    return paths.report


def draw(sections: Sequence[Section]) -> dict[str, Drawn]:
    """Draw every plot of the sections; return them by name."""
    plots = [plot for section in sections for plot in section.plots]
    if not plots:
        return {}
    from phalanx.report.plots.drawing import svg_of

    return {plot.name: Drawn(plot, svg_of(plot.figure)) for plot in plots}


def render(study: StudyData, sections: Sequence[Section], drawn: dict[str, Drawn]) -> str:
    """Return the page as HTML."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        trim_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["units"] = words.unbroken
    wall = study.started_wall
    emulated = dict.fromkeys(g.emulated for g in study.groups if g.emulated)
    return environment.get_template("report.html").render(
        title=study.title,
        kind="comparison" if study.paths.study.exists() else "run",
        verdict=verdict_on(study),
        script=study.script,
        started=time.strftime("%Y-%m-%d %H:%M", time.localtime(wall)) if wall else "",
        sections=sections,
        drawn=drawn,
        emulated=" / ".join(f"{mark(kind)}: {kind}" for kind in emulated),
        resumes=study.runs[0].summary.resumes if len(study.runs) == 1 else None,
        many=len(study.runs) != 1,
        version=__version__,
        style=Markup((_TEMPLATES / "report.css").read_text(encoding="utf-8")),
    )


def _write_figures(folder: Path, drawn: dict[str, Drawn], files: dict[str, str]) -> None:
    if not drawn and not files:
        return
    if folder.is_symlink():
        raise InputError(
            f"{folder} is a link, and nothing is written through it", "Remove the link."
        )
    folder.mkdir(parents=True, exist_ok=True)
    for name, one in drawn.items():
        from phalanx.report.plots.drawing import save_figure

        save_figure(one.plot.figure, one.svg, folder, name)
    for name, text in files.items():
        write_whole(folder / name, text)
