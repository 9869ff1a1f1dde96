"""All rows of a comparison of language models have the same context policy, which is named next to their scores."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from command_line import expect_error
from compare_helpers import InProcessTrainer, compare
from fake_evaluations import lm_results
from small_runs import make_text, run_file, train_here

import weft
from weft import files
from weft.cli.main import main
from weft.comparison import runner as comparing
from weft.comparison import table
from weft.comparison.context_policy import check_context
from weft.comparison.results import EvaluationOptions, load_or_evaluate
from weft.comparison.results import load as load_evidence
from weft.errors import UsageError
from weft.metrics.items import ItemStatistics
from weft.runs.load import load as load_run
from weft.runs.resolve import resolve
from weft.tasks.lm.task import LM

pytestmark = pytest.mark.usefixtures("restore_openmp_env")
PAST = "Context policy full: each token is predicted from all preceding tokens that the model can read"
RUN = """
task = "lm"
[data]
train = "text.txt"
valid = 0.1
test = 0.1
context_length = 16
[model]
arch = "ngram"
[train]
max_steps = 2
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A GPT, a Transformer with learned positions, and an n-gram model, of running text and of one tokenizer."""
    place = tmp_path_factory.mktemp("policies")
    text = make_text(place / "text.txt", words=1500)
    for kind in ("gpt", "transformer"):
        train_here(run_file(text, kind, train__max_steps=8), place / kind)
    train_here({**run_file(text), "model": {"arch": "ngram"}, "train": {}}, place / "ngram")
    return place


def nats(path: Path, context: str) -> float:
    return load_run(path, LM, device="cpu").evaluate(context=context)["loss"].value


def found_in(out: Path) -> dict[str, float]:
    return {row["name"]: row["score"]["value"] for row in files.read_json(out / "comparison.json")["rows"]}


def test_every_row_gives_every_token_the_same_context(place, capsys, monkeypatch):
    monkeypatch.chdir(place)
    code, out, err = compare(capsys, "gpt", "transformer", "ngram", "--output-dir", "all")
    assert (code, "weft:" in err) == (0, False)
    rows = found_in(place / "all")
    for name, context in (("gpt", "stride:8"), ("transformer", "stride:8"), ("ngram", "carry")):
        assert rows[name] == pytest.approx(nats(place / name, context), rel=1e-9)
    names = [row["name"] for row in files.read_json(place / "all" / "comparison.json")["rows"]]
    ways = {"gpt": "stride:8/16", "transformer": "stride:8/16", "ngram": "carry:warm-64"}
    strided = ", ".join(name for name in names if name != "ngram")
    told = {"stride:8/16": f"stride:8/16: {strided}", "carry:warm-64": "carry:warm-64: ngram"}
    line = f"{PAST} ({'; '.join(told[way] for way in dict.fromkeys(ways[name] for name in names))})."
    assert out.split("\n")[-2] == line
    context = {"policy": "full", "rows": {name: f"full/{ways[name]}" for name in names}, "text": line}
    assert files.read_json(place / "all" / "comparison.json")["context"] == context
    assert f'<p class="note">{line}</p>' in (place / "all" / "report.html").read_text()
    # the same number of tokens in every row
    kept = [load_evidence(place / "all" / "results" / name) for name in names]
    assert len({float(one.items.statistics["tokens"].sum()) for one in kept}) == 1


def test_validation_follows_the_same_policy(place):
    """The runs have no test data, so `evaluate` reads what validation read, with the weights that it chose."""
    for name, context in (("gpt", "stride:8"), ("transformer", "stride:8"), ("ngram", "carry")):
        logged = [json.loads(line) for line in (place / name / "metrics.jsonl").read_text().split("\n") if line]
        best = min(line["valid_loss"] for line in logged if "valid_loss" in line)
        assert best == pytest.approx(nats(place / name, context), rel=1e-6)


def test_a_requested_policy_applies_to_all_rows_and_is_stored_separately(place, capsys, monkeypatch):
    monkeypatch.chdir(place)
    plain = compare(capsys, "gpt", "ngram", "--output-dir", "given", "-q")[1]
    code, out, _ = compare(capsys, "gpt", "ngram", "--context", "stride", "--output-dir", "given", "-q", "--json")
    document = json.loads(out)
    assert code == 0
    assert found_in(place / "given") == {name: nats(place / name, "stride") for name in ("gpt", "ngram")}
    line = "Context policy stride (stride:16/16: {}); learning curves use full."
    assert document["context"]["text"] == line.format(", ".join(document["context"]["rows"]))
    assert "weft compare gpt ngram --context stride --output-dir given" in (place / "given" / "report.html").read_text()
    assert load_evidence(place / "given" / "results" / "gpt").context == "stride:16/16"
    # what was measured under another policy is not taken for this one
    again = compare(capsys, "gpt", "ngram", "--output-dir", "given", "-q")[1]
    assert [line.split()[:2] for line in again.split("\n")[:3]] == [line.split()[:2] for line in plain.split("\n")[:3]]
    assert (
        compare(capsys, "gpt", "ngram", "--context", "full", "--output-dir", "given", "-q")[1].split("\n")[3]
        == again.split("\n")[3]
    )


def test_results_of_another_policy_are_recomputed(place, tmp_path):
    first = load_or_evaluate(place / "gpt", tmp_path / "evidence", device="cpu")
    strided = load_or_evaluate(
        place / "gpt", tmp_path / "evidence", evaluation=EvaluationOptions(context="stride:16"), device="cpu"
    )
    assert (first.policy, first.context) == ("full", "full/stride:8/16")
    assert (strided.policy, strided.context) == ("stride:16", "stride:16/16")
    assert first.items.statistics["nats"].sum() != strided.items.statistics["nats"].sum()
    kept = load_evidence(tmp_path / "evidence")
    assert (kept.policy, kept.context, kept.cache_key) == (strided.policy, strided.context, strided.cache_key)


def test_rows_with_different_policies_are_refused():
    items = ItemStatistics(np.arange(4), {"nats": np.ones(4), "tokens": np.ones(4)})
    groups = {name: [lm_results(items, run=Path(name), policy=name, context=name)] for name in ("full", "stride")}
    with pytest.raises(UsageError) as caught:
        table.rows(groups)
    assert str(caught.value) == (
        "compare: full and stride have different context policies (full, stride); evaluate both with one policy"
    )


def test_lines_have_one_policy(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = make_text(tmp_path / "text.txt", words=200)
    train_here({**run_file(text, data__read_as="lines"), "model": {"arch": "ngram"}, "train": {}}, tmp_path / "lines")
    line = "Context policy reset: each token is predicted from its own line."
    for words in ([], ["--context", "reset"], ["--context", "full"]):
        assert compare(capsys, "lines", "--output-dir", "out", "-q", *words)[1].split("\n")[-2] == line
    told = "lines: --context: 'stride' is not possible for data that is read as lines"
    assert expect_error(capsys, "compare", "lines", "--context", "stride", "--output-dir", "other") == (2, told)


def test_a_row_that_does_not_support_a_policy_is_refused_by_name(place, capsys, monkeypatch):
    monkeypatch.chdir(place)
    told = "transformer: --context: 'carry' needs more than the model's 16 positions; use 'stride'"
    for option, name in (("--output-dir", "compare.html"), ("--report", "report.html")):
        assert expect_error(capsys, "compare", "gpt", "transformer", "--context", "carry", option, name) == (2, told)
    told = "gpt: --context: stride must be from 1 to context_length (16), got '17'"
    assert expect_error(capsys, "compare", "gpt", "ngram", "--context", "stride:17", "--output-dir", "refused") == (2, told)
    assert not (place / "refused").exists()


def test_only_language_models_have_a_context_policy(tmp_path):
    settings = resolve(
        {"task": "classification", "data": {"train": "texts.tsv"}, "model": {"arch": "naive-bayes"}}, base=tmp_path
    )
    with pytest.raises(UsageError) as caught:
        check_context(settings, "full", "bayes")
    assert str(caught.value) == "context: not available for task 'classification' (bayes)"


def test_a_run_file_is_refused_before_anything_is_trained(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(comparing, "ParallelTrainer", InProcessTrainer)
    monkeypatch.setattr(InProcessTrainer, "trained", [], raising=False)
    make_text(tmp_path / "text.txt", words=300)
    (tmp_path / "run.toml").write_text(RUN)
    words = ["run.toml", "--models", "ngram,transformer", "--context", "carry", "--output-dir", "out"]
    told = "transformer: --context: 'carry' needs more than the model's 16 positions; use 'stride'"
    assert expect_error(capsys, "compare", *words) == (2, told)
    assert (InProcessTrainer.trained, (tmp_path / "out").exists()) == ([], False)


def test_the_page_names_its_policy(place, capsys, monkeypatch):
    monkeypatch.chdir(place)
    assert main(["compare", "gpt", "--context", "stride:4", "--report", "page.html", "-q"]) == 0
    page = (place / "page.html").read_text()
    assert "Context policy stride:4 (stride:4/16: gpt); learning curves use full." in page
    assert "weft compare gpt --context stride:4 --report page.html" in page
    capsys.readouterr()
    assert compare(capsys, "gpt", "--output-dir", "alone", "-q")[0] == 0
    told = "--context: alone is a comparison and already evaluated; name runs instead"
    assert expect_error(capsys, "compare", "alone", "--context", "full") == (2, told)


def test_a_state_carried_in_training_is_carried_in_evaluation(tmp_path):
    text = make_text(tmp_path / "text.txt", words=300)
    values = run_file(text, "gpt", data__read_as="stream", data__context_length=8, train__max_steps=2)
    train_here(values, tmp_path / "run")
    assert "|context:full/carry:warm-64|" in weft.load(tmp_path / "run").evaluate()["loss"].signature
