"""A small training from a DataFrame, on a Spark of threads: fitted, used, saved, trusted or not."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from phalanx.core.errors import InputError
from phalanx.core.run_folder.run_paths import RunPaths

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300, func_only=True)]
MODELS = Path(__file__).parent / "spark_models.py"
MAKERS = "spark_models:classifier", "spark_models:momentum"


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    sql = pytest.importorskip("pyspark.sql")
    pytest.importorskip("pandas", reason="pyspark needs it for Arrow")
    if not shutil.which("java"):
        pytest.skip("there is no java here")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        builder = sql.SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
        for name in ("host", "bindAddress"):
            builder = builder.config(f"spark.driver.{name}", "127.0.0.1")
        session = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
        session.sparkContext.setLogLevel("OFF")
        session.sparkContext.addPyFile(str(MODELS))
        yield session
        session.stop()


@pytest.fixture(scope="module")
def frame(spark: Any) -> Any:
    draws = np.random.default_rng(0).normal(size=(300, 4)).astype(np.float32)
    labels = (draws[:, 0] > 0).astype(int) + (draws[:, 1] > 0).astype(int)
    rows = [(list(map(float, x)), int(y)) for x, y in zip(draws, labels, strict=True)]
    return spark.createDataFrame(rows, "features array<float>, label int")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of the driver's runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PHALANX_RUNS", str(tmp_path_factory.mktemp("home") / "runs"))
        yield Path(os.environ["PHALANX_RUNS"])


@pytest.fixture(scope="module")
def fitted(frame: Any, home: Path) -> Any:
    return _estimator().fit(frame)


@pytest.fixture
def trusted(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    from phalanx.spark import building

    found: set[str] = set()
    monkeypatch.setattr(building, "_trusted", found)
    return found


def _estimator(**options: Any) -> Any:
    from phalanx.spark import Estimator

    return Estimator(
        MAKERS[0], optimizer=MAKERS[1], optimizer_options={"lr": 0.1}, workers=2, batch=30,
        epochs=5, **options,
    )  # fmt: skip


def test_a_fitted_model_predicts(fitted: Any, frame: Any) -> None:
    rows = fitted.transform(frame).collect()
    assert np.mean([row.prediction == row.label for row in rows]) > 0.75
    assert sum(one.rows for one in fitted.figures) == 300 and len(fitted.figures) == 2


def test_a_fit_is_a_run_with_a_history_and_a_report(fitted: Any, home: Path) -> None:
    from phalanx.report.html import write_report

    assert fitted.run_folder.parent == home
    assert [row["epoch"] for row in fitted.history] == list(range(5))
    assert all(row["samples"] == 300 and row["train_accuracy"] > 0 for row in fitted.history)
    assert fitted.history[0]["train_loss"] > fitted.history[-1]["train_loss"]
    summary = json.loads((fitted.run_folder / "summary.json").read_text())
    assert (summary["status"], summary["system"], summary["workers"]) == (
        "done",
        "phalanx-spark",
        2,
    )
    assert all(summary["phases"][name] > 0 for name in ("start", "read", "train"))
    assert load_file(fitted.run_folder / "model.safetensors")["0.weight"].shape == (8, 4)
    assert "Accuracy" in write_report(RunPaths(fitted.run_folder)).read_text()


@pytest.mark.parametrize("validation", [0.3, "held"])
def test_rows_are_held_out_and_judged_after_each_epoch(
    frame: Any, home: Path, validation: Any, tmp_path: Path
) -> None:
    from phalanx.spark import Model, trust

    marked = frame.selectExpr("features", "label", "label = 2 as held")
    model = _estimator(validation=validation).fit(marked)
    trained, held = model.history[0]["samples"], frame.where("label = 2").count()
    assert 150 < trained < 270 if validation == 0.3 else trained == 300 - held
    assert sum(one.rows for one in model.figures) == trained
    last = model.history[-1]
    assert last["validation_loss"] > 0 and 0 <= last["validation_accuracy"] <= 1
    if validation == "held":  # classes that it has never seen are never predicted
        assert last["validation_accuracy"] == 0.0
    trust(*MAKERS)
    model.save(str(tmp_path / "saved"))
    assert Model.load(str(tmp_path / "saved")).history == model.history


@pytest.mark.parametrize("validation", [0, 1.5, True, "hold"])
def test_a_validation_that_cannot_be(frame: Any, validation: Any) -> None:
    with pytest.raises(InputError, match=r"is not possible|no column 'hold'"):
        _estimator(validation=validation).fit(frame)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        ("array_append(features, 1f)", "column 'features' has 5 numbers a row; .* trained on 4"),
        ("if(label = 1, null, features)", "column 'features' of the rows has .* nulls"),
        ("'words'", "has rows of different lengths, or no numbers"),
    ],
)
def test_rows_that_a_model_cannot_take_are_one_line(
    fitted: Any, frame: Any, made: str, words: str
) -> None:
    wrong = frame.coalesce(1).selectExpr(f"{made} as features", "label")
    with pytest.raises(Exception, match=words) as caught:
        fitted.transform(wrong).collect()
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (
            ("array_append(features, 1f) as features", "label"),
            "5 in 'features', 1 in 'label'.*15x5",
        ),
        (("features", "array(label, label) as label"), "4 in 'features', 2 in 'label'"),
        (("features", "label + 9 as label"), "Target .* is out of bounds"),
    ],
)
def test_rows_that_a_model_cannot_train_on_are_one_line(
    frame: Any, made: tuple[str, str], words: str
) -> None:
    with pytest.raises(InputError, match=words) as caught:
        _estimator().fit(frame.selectExpr(*made))
    assert len(caught.value.cause.splitlines()) == 1
    assert caught.value.remedy.startswith("Give rows as the model was made for")


def test_no_rows_have_no_predictions(fitted: Any, frame: Any) -> None:
    assert fitted.transform(frame.coalesce(1).where("label > 5")).collect() == []


def test_a_misspelt_parameter(spark: Any) -> None:
    with pytest.raises(InputError, match="no parameter 'epoch'") as caught:
        _estimator().setParams(epoch=3)
    assert caught.value.remedy == "Did you mean 'epochs'?"


@pytest.mark.parametrize("kind", ["estimator", "pipeline"])
def test_what_a_folder_names_is_run_only_if_it_is_trusted(
    fitted: Any, frame: Any, tmp_path: Path, trusted: set[str], kind: str
) -> None:
    from pyspark.ml import PipelineModel

    from phalanx.spark import Estimator, trust

    stage = _estimator() if kind == "estimator" else PipelineModel([fitted])
    reader = Estimator if kind == "estimator" else PipelineModel
    stage.write().save(str(tmp_path / "saved"))
    assert not [file for file in tmp_path.rglob("*") if file.suffix in (".pkl", ".pt")]
    for name in MAKERS:
        with pytest.raises(InputError, match=f"names '{name}', which would run as code"):
            reader.load(str(tmp_path / "saved"))
        trust(name)
    loaded = reader.load(str(tmp_path / "saved"))
    if kind == "estimator":
        maps = ({p.name: v for p, v in e.extractParamMap().items()} for e in (stage, loaded))
        assert loaded.uid == stage.uid and next(maps) == next(maps)
    else:
        rows = frame.coalesce(1).cache()
        assert loaded.transform(rows).collect() == fitted.transform(rows).collect()


@pytest.mark.parametrize("kind", ["model", "estimator"])
@pytest.mark.parametrize("what", ["model", "optimizer"])
def test_a_folder_that_names_a_command_runs_nothing(
    fitted: Any, tmp_path: Path, trusted: set[str], kind: str, what: str
) -> None:
    from phalanx.spark import Estimator, Model, trust

    trust(*MAKERS)
    folder, mark = tmp_path / "saved", tmp_path / "mark"
    (fitted if kind == "model" else _estimator()).write().save(str(folder))
    (part,) = (folder / "metadata").glob("part-00000*")
    about = json.loads(part.read_text())
    place = about["phalanx"]["source"] if kind == "model" else about["paramMap"]
    place |= {what: "subprocess:getoutput", f"{what}_options": {"cmd": f"touch {mark}"}}
    part.write_text(json.dumps(about))
    for sums in folder.rglob(".*.crc"):
        sums.unlink()
    with pytest.raises(InputError, match="'subprocess:getoutput'"):
        (Model if kind == "model" else Estimator).load(str(folder))
    assert not mark.exists()
