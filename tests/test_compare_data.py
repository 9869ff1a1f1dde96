"""`weft compare --data`: runs with other or missing training data, imported ones included, compared on given files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import expect_error

from weft.cli.main import main

TEXT = "\n".join(["the cat sat on the mat", "the dog sat", "a cat saw the dog on a mat", "the cat saw a mat"] * 6) + "\n"
HELD = "\n".join(["the dog saw the cat", "a mat", "the cat sat on a dog"] * 9) + "\n"
RUN = """
task = "lm"
[data]
train = "text.txt"
read_as = "lines"
[tokenizer]
type = "whitespace"
[model]
arch = "ngram"
order = {order}
"""


@pytest.fixture(autouse=True)
def work_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text(TEXT)
    Path("held.txt").write_text(HELD)
    return tmp_path


@pytest.fixture
def runs() -> list[str]:
    """A run of our own, and one that came as an ARPA file and knows no data."""
    for name, order in (("own", 3), ("two", 2)):
        Path("run.toml").write_text(RUN.format(order=order))
        assert main(["train", "run.toml", "--quiet", "--output-dir", f"runs/{name}"]) == 0
    assert main(["export", "runs/two", "--format", "arpa", "--output-dir", "two.arpa"]) == 0
    assert main(["import", "two.arpa", "--format", "arpa", "--output-dir", "runs/theirs", "--quiet"]) == 0
    return ["runs/own", "runs/theirs"]


def evaluated(capsys: pytest.CaptureFixture[str], run: str, data: str) -> float:
    capsys.readouterr()
    assert main(["evaluate", run, "--data", data, "--json"]) == 0
    found: Any = json.loads(capsys.readouterr().out)
    return next(float(one["value"]) for one in found["scores"] if one["name"] == "bits_per_byte")


def row_scores(found: dict[str, Any]) -> list[float]:
    return [row["scores"]["bits_per_byte"]["value"] for row in found["rows"]]


def test_an_imported_run_and_a_trained_one_on_a_given_file(runs, capsys):
    wanted = sorted(evaluated(capsys, run, "held.txt") for run in runs)
    assert wanted[0] != wanted[1]
    assert main(["compare", *runs, "--data", "held.txt", "--output-dir", "both", "--json", "--quiet"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["data"] == "held.txt" and sorted(row_scores(found)) == pytest.approx(wanted, abs=1e-12)
    kept = json.loads(Path("both/comparison.json").read_text())
    assert kept["command"] == "weft compare runs/own runs/theirs --data held.txt --output-dir both"
    # what was measured is kept for this file alone
    assert main(["compare", *runs, "--data", "text.txt", "--output-dir", "both", "--json", "--quiet"]) == 0
    again = row_scores(json.loads(capsys.readouterr().out))
    assert sorted(again) == pytest.approx(sorted(evaluated(capsys, run, "text.txt") for run in runs), abs=1e-12) != wanted


def test_several_files_are_one_text(runs, capsys):
    assert (
        main(["compare", *runs, "--data", "held.txt", "--data", "text.txt", "--output-dir", "both", "--json", "--quiet"]) == 0
    )
    found = json.loads(capsys.readouterr().out)
    assert found["data"] == "held.txt, text.txt"
    Path("all.txt").write_text(HELD + TEXT)
    assert sorted(row_scores(found)) == pytest.approx(sorted(evaluated(capsys, run, "all.txt") for run in runs), abs=1e-9)


def test_a_report_of_runs_on_a_given_file(runs, capsys):
    """Also of a run whose own data is another by now: the refusal names the option."""
    assert main(["compare", *runs, "--data", "held.txt", "--report", "page.html", "--json", "--quiet"]) == 0
    assert len(json.loads(capsys.readouterr().out)["rows"]) == 2
    page = Path("page.html").read_text()
    assert "weft compare runs/own runs/theirs --data held.txt" in page
    assert not Path("runs/own/results").exists() and not Path("runs/theirs/results").exists()


def test_refusals(runs, capsys):
    code, said = expect_error(capsys, "compare", *runs, "--output-dir", "both")
    assert code == 2 and said.startswith("compare: runs/own and runs/theirs have different data (")
    assert said.endswith("); set --data to evaluate all of them on the same file")
    Path("other.toml").write_text(RUN.format(order=2).replace('"lines"', '"windows"'))
    assert main(["train", "other.toml", "--quiet", "--output-dir", "runs/other"]) == 0
    assert expect_error(capsys, "compare", "runs/own", "runs/other", "--data", "held.txt") == (
        2,
        "compare: runs/own and runs/other have different data.read_as (lines, windows): not comparable;"
        " train them with the same data.read_as",
    )
    for option in ([], ["--report", "page.html"]):
        assert expect_error(capsys, "compare", *runs, "--data", "nope.txt", *option) == (3, "nope.txt: file not found")
    assert not Path("runs/comparison").exists()
    message = "--data: requires run directories; with a run file, set data.test"
    assert expect_error(capsys, "compare", "run.toml", "--data", "held.txt") == (2, message)
    assert main(["compare", *runs, "--data", "held.txt", "--output-dir", "both", "--quiet"]) == 0
    capsys.readouterr()
    message = "--data: both is a comparison and already evaluated; name runs instead"
    assert expect_error(capsys, "compare", "both", "--data", "held.txt") == (2, message)


def test_unknown_tokens_are_reported_if_tokenizers_differ(tmp_path, monkeypatch, capsys):
    """A token of a word that is not known stands for many characters and costs little."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("the cat sat on the mat\nthe dog sat\n" * 30)
    (tmp_path / "other.txt").write_text("der Hund sah die Katze dort\nwir sind da\n" * 30)
    run = 'task = "lm"\n[data]\ntrain = "text.txt"\n[tokenizer]\ntype = "{}"\n[model]\narch = "ngram"\norder = 2\n'
    for kind in ("char", "word"):
        (tmp_path / f"{kind}.toml").write_text(run.format(kind))
        assert main(["train", f"{kind}.toml", "-q"]) == 0
    capsys.readouterr()
    assert main(["compare", "runs/char", "runs/word", "--data", "other.txt", "--output-dir", "both"]) == 0
    told = capsys.readouterr().out
    assert "are cheap to predict, so these scores look better than they are." in told and "type=word 8" in told
