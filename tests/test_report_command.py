"""`weft compare --report`: reports of comparisons, of damaged comparisons, and of runs that were not compared."""

from __future__ import annotations

import copy
import json
import math
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import expect_error
from report_documents import classification_document, lm_document, seq2seq_document, tagging_document

from weft.cli.main import main
from weft.cli.report_command import ReportOptions, write_report
from weft.comparison import results as evidence
from weft.errors import ModelError, UsageError
from weft.report.page import page
from weft.report.page_check import checksum, find_problem

KeyPath = tuple[str | int, ...]
DEFAULT = ReportOptions(file=None, data=None, context=None, device="auto", json=False, quiet=False)


def save(document: Any, folder: Path) -> Path:
    folder.mkdir()
    (folder / "comparison.json").write_text(json.dumps(document).replace("Infinity", "null"))
    return folder


# ---- a comparison


def test_report_of_a_comparison_is_regenerated(tmp_path, capsys):
    folder = save(seq2seq_document(), tmp_path / "comparison")
    assert write_report([folder], DEFAULT) == 0
    report = folder / "report.html"
    assert capsys.readouterr().out == f"{report}\n"
    assert report.read_text() == page(json.loads((folder / "comparison.json").read_text()))
    other = tmp_path / "other.html"
    assert write_report([folder / "comparison.json"], DEFAULT._replace(file=other, json=True)) == 0
    data = json.loads(capsys.readouterr().out)
    assert data == {
        "report": str(other),
        "bytes": other.stat().st_size,
        "rows": ["rnn", "lstm", "lstm,attention", "transformer"],
    }
    assert other.read_bytes() == report.read_bytes()


def test_invalid_comparisons_are_rejected(tmp_path):
    folder = save(seq2seq_document(), tmp_path / "comparison")
    with pytest.raises(UsageError) as caught:
        write_report([folder, tmp_path], DEFAULT)
    assert str(caught.value) == f"compare: {folder} is a comparison; name it alone, or name runs"
    for wrong in ([], {"rows": []}, {"rows": [1], "metric": {}}):
        (folder / "comparison.json").write_text(json.dumps(wrong))
        with pytest.raises(ModelError) as damaged:
            write_report([folder], DEFAULT)
        file = folder / "comparison.json"
        assert str(damaged.value) == f"{file}: not a comparison (it has no rows or no metric); write it with weft compare"
    (folder / "comparison.json").unlink()
    (folder / "plan.toml").write_text("")
    with pytest.raises(UsageError) as unfinished:
        write_report([folder], DEFAULT)
    assert str(unfinished.value) == (
        f"{folder}: the comparison is not finished (comparison.json is missing); run the same weft compare to resume"
    )


# ---- damage


def changed(document: Any, key_path: KeyPath, value: Any) -> Any:
    """A copy with another value at a key path; Ellipsis removes it."""
    edited = copy.deepcopy(document)
    inner = edited
    for step in key_path[:-1]:
        inner = inner[step]
    if value is ...:
        del inner[key_path[-1]]
    else:
        inner[key_path[-1]] = value
    return edited


@pytest.mark.parametrize(
    ("key_path", "value", "message"),
    [
        (("rows", 2), 7, "rows[2] is not an object"),
        (("rows", 1, "name"), ..., "rows[1].name is missing"),
        (("rows", 1, "name"), "rnn", "rows[1].name is not unique"),
        (("rows", 0, "score"), None, "rows[0].score is not an object"),
        (("rows", 0, "score", "value"), "12", "rows[0].score.value is not a number"),
        (("rows", 0, "num_parameters"), 10**400, "rows[0].num_parameters is not a number"),
        (("rows", 0, "best"), 1, "rows[0].best is not a boolean"),
        (("metric", "better"), "more", "metric.better is not 'higher' or 'lower'"),
        (("curves", 0, "train", 5, "step"), None, "curves[0].train[5].step is not a count"),
        (("breakdowns", 0, "bins"), "1-5", "breakdowns[0].bins is not an array"),
        (("breakdowns", 0, "counts", 1), -3, "breakdowns[0].counts[1] is not a count"),
        (("breakdowns", 0, "values", "lstm"), [1.0], "breakdowns[0].values.lstm has 1 values for 6 bins"),
        (("items", 1, "outputs", "lstm"), ["a"], "items[1].outputs.lstm is not a string"),
        (("confusions",), {"labels": ["a"], "matrices": {"lstm": [[1, 2]]}}, "confusions.matrices.lstm is not 1 x 1"),
        (("environment",), {"a": [[[[[[]]]]]]}, "environment.a is nested too deeply"),
    ],
)
def test_nested_damage_is_reported_in_one_line(tmp_path, capsys, key_path, value, message):
    folder = save(changed(seq2seq_document(3), key_path, value), tmp_path / "comparison")
    file = folder / "comparison.json"
    expected = f"{file}: damaged: {message}; run the same weft compare to write it again"
    assert expect_error(capsys, "compare", str(folder)) == (4, expected)
    assert not (folder / "report.html").exists()


def iterate_key_paths(value: Any, prefix: KeyPath = ()) -> Iterator[KeyPath]:
    """Key paths of everything in a document; the last element of a list represents all."""
    if prefix:
        yield prefix
    inner = value.items() if isinstance(value, dict) else list(enumerate(value))[-1:] if isinstance(value, list) else ()
    for name, one in inner:
        yield from iterate_key_paths(one, (*prefix, name))


def without(value: Any, names: set[str]) -> Any:
    """A document without these rows."""
    if isinstance(value, dict):
        return {name: without(inner, names) for name, inner in value.items() if name not in names}
    return [without(inner, names) for inner in value] if isinstance(value, list) else value


def small(document: Any) -> Any:
    """A minimal document with every type of part."""
    document["curves"] = [{**curve, "train": curve["train"][:2], "valid": curve["valid"][:2]} for curve in document["curves"]]
    *rest, last = document["rows"]
    actual = {**document, "rows": [rest[0], last], "items": document["items"][:4]}
    return without(actual, {row["name"] for row in rest[1:]})


DAMAGE: list[Any] = [..., None, True, -1, 10**400, math.nan, "\ud800", [], ["x"], {}, [[[[[[]]]]]]]


@pytest.mark.parametrize(
    "make",
    [
        seq2seq_document,
        classification_document,
        *(pytest.param(make, marks=pytest.mark.slow) for make in (lm_document, tagging_document)),
    ],
)
def test_damaged_comparisons_are_rendered_or_rejected(make):
    document, refused_ones = small(make()), 0
    key_paths = list(iterate_key_paths(document))
    for key_path in key_paths:
        for value in DAMAGE:
            damaged = changed(document, key_path, value)
            if damaged.get("rows") and damaged.get("metric") and not find_problem(damaged):
                page(damaged).encode()
            else:
                refused_ones += 1
    assert refused_ones > 5 * len(key_paths)


def test_an_edited_comparison_is_rejected(tmp_path, capsys):
    """One digit of a score, which only the checksum can detect."""
    document = json.loads(json.dumps(seq2seq_document()).replace("Infinity", "null").replace("NaN", "null"))
    document["checksum"] = checksum(document)
    folder = save(document, tmp_path / "cmp")
    assert main(["compare", str(folder)]) == 0
    # different JSON formatting is accepted
    (folder / "comparison.json").write_text(json.dumps(document, indent=1, sort_keys=True))
    assert main(["compare", str(folder)]) == 0
    capsys.readouterr()
    document["rows"][0]["score"]["value"] += 1.0
    (folder / "comparison.json").write_text(json.dumps(document))
    wrong = "damaged: checksum does not match the content; run the same weft compare to write it again"
    assert expect_error(capsys, "compare", str(folder)) == (4, f"{folder / 'comparison.json'}: {wrong}")


def test_an_intact_comparison_has_no_problem():
    assert [
        find_problem(document)
        for document in (seq2seq_document(), lm_document(), classification_document(60), tagging_document())
    ] == [""] * 4


# ---- runs

RUN = """
task = "lm"
[data]
train = "text.txt"
valid = 0.2
read_as = "lines"
[tokenizer]
type = "char"
[model]
arch = "ngram"
order = 2
"""


@pytest.fixture
def runs(trained_dir, capsys) -> list[Path]:
    """Three runs, two of which differ only in their seed."""
    for settings, name in (("seed=1", "again"), ("model.order=3", "longer")):
        assert main(["train", "run.toml", "--quiet", "--set", settings, "--output-dir", f"runs/{name}"]) == 0
    capsys.readouterr()
    return [Path("runs/run"), Path("runs/again"), Path("runs/longer")]


@pytest.fixture
def measured(monkeypatch) -> list[str]:
    """The names of the evaluated runs."""
    calls: list[str] = []
    real = evidence.evaluate_run

    def evaluate_run(run: Any, data: Any = None, *, evaluation: Any, progress: Any = None) -> Any:
        calls.append(run.directory.path.name)
        return real(run, data, evaluation=evaluation, progress=progress)

    monkeypatch.setattr(evidence, "evaluate_run", evaluate_run)
    return calls


def table(text: str) -> list[dict[str, Any]]:
    actual = text.split('<script type="application/json" id="data">')[1].split("</script>")[0]
    rows: list[dict[str, Any]] = json.loads(actual)["rows"]
    return rows


def test_report_of_runs_has_the_scores_of_evaluate(runs, measured, capsys):
    assert main(["compare", "--quiet", *map(str, runs), "--report", "report.html"]) == 0
    assert capsys.readouterr().out == "report.html\n"
    text = Path("report.html").read_text()
    assert "weft compare runs/run runs/again runs/longer --report report.html" in text
    assert "2 language models on <code>text.txt (validation data)</code>" in text  # without its directory
    assert measured == ["run", "again", "longer"]
    assert main(["evaluate", "runs/longer", "--json"]) == 0
    scores = {score["name"]: score["value"] for score in json.loads(capsys.readouterr().out)["scores"]}
    actual = {row["name"]: row for row in table(text)}
    assert list(actual) == ["ngram,order=3", "ngram,order=2"]
    assert actual["ngram,order=3"]["value"] == pytest.approx(scores["loss"], rel=1e-5)


def test_cached_results_are_reused_until_a_run_changes(runs, measured):
    words = ["compare", "--quiet", *map(str, runs), "--report", "report.html"]
    assert main(words) == 0
    first = Path("report.html").read_bytes()
    assert main(words) == 0
    assert len(measured) == 3 and Path("report.html").read_bytes() == first
    (runs[0] / "results/results.json").write_text("{")  # damaged: evaluated again
    assert main(words) == 0
    assert measured[3:] == ["run"]
    weights = runs[2] / "model.safetensors"
    assert main(["train", "run.toml", "--quiet", "--overwrite", "--set", "model.order=4", "--output-dir", "runs/longer"]) == 0
    assert weights.exists() and not (runs[2] / "results").exists()
    assert main(words) == 0
    assert measured[4:] == ["longer"]


def test_results_of_a_comparison_are_reused(runs, measured):
    assert main(["compare", "--quiet", str(runs[0]), "--report", "report.html"]) == 0
    Path("runs/results").mkdir()
    shutil.move(runs[0] / "results", "runs/results/run")
    assert main(["compare", "--quiet", str(runs[0]), "--report", "report.html"]) == 0
    assert measured == ["run"] and not (runs[0] / "results").exists()


def test_report_requires_an_html_file_name(runs, capsys):
    assert expect_error(capsys, "compare", str(runs[0]), "--report", "page.pdf") == (
        2,
        "--report: page.pdf must end in .html",
    )


def test_a_read_only_run_is_evaluated_and_unchanged(runs, measured, monkeypatch):
    monkeypatch.setattr("weft.cli.report_command.os.access", lambda path, mode: mode != os.W_OK)
    assert main(["compare", "--quiet", str(runs[0]), "--report", "page.html"]) == 0
    assert measured == ["run"] and not (runs[0] / "results").exists() and Path("page.html").exists()
