"""`weft explain --compare-with`: gradient flow of several runs on one plot; compiled runs."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import expect_error
from label_runs import LabelRuns
from seq2seq_runs import Seq2SeqRuns
from small_runs import make_text, run_file, train_here

import weft
import weft.runs.load
from weft.cli.main import main
from weft.errors import UsageError
from weft.explain.alignment import cross_attention_modules
from weft.explain.gradient_flow import TimeGradients, relative_norms
from weft.explain.gradient_flow_runs import compare_gradient_flow
from weft.explain.hooks import attention_weights, record_activations
from weft.explain.options import ExplainConfig

TEXT = "the old cat see"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Language models of two kinds, one of them in two folders of one name."""
    place = tmp_path_factory.mktemp("runs")
    text = make_text(place / "text.txt")
    for folder, kind in (("lstm", "lstm"), ("transformer", "transformer"), ("more/lstm", "lstm")):
        (place / folder).parent.mkdir(exist_ok=True)
        train_here(run_file(text, kind, train__max_steps=3, seed=len(folder)), place / folder)
    return place


def asked(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert main(["explain", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_several_runs_equal_each_run_alone(place, capsys, restore_openmp_env):
    lstm, transformer = str(place / "lstm"), str(place / "transformer")
    result = asked(capsys, lstm, TEXT, "--compare-with", transformer, "--view", "gradient-flow")
    assert (result["run"], result["compare_with"], result["input"]) == (lstm, [transformer], TEXT)
    (view,) = result["views"]
    assert [(item["name"], item["arch"]) for item in view["runs"]] == [("lstm", "lstm"), ("transformer", "transformer")]
    for item, folder in zip(view["runs"], (lstm, transformer), strict=True):
        (alone,) = asked(capsys, folder, TEXT, "--view", "gradient-flow")["views"]
        for part in ("tokens", "position", "time", "layers"):
            assert item[part] == alone[part]


def test_the_table_has_a_row_per_run_initialized_and_trained(place, capsys, restore_openmp_env):
    words = [
        "explain",
        str(place / "lstm"),
        TEXT,
        "--compare-with",
        str(place / "transformer"),
        "--quiet",
    ]  # gradient-flow, without --view
    assert main([*words, "--output", str(place / "x.svg")]) == 0
    output = capsys.readouterr().out.splitlines()
    assert output[0].split() == ["run", "weights", "10", "steps", "back", "lowest"]
    assert [line.split()[0] for line in output[1:5]] == ["lstm", "lstm", "transformer", "transformer"]
    view = compare_gradient_flow({"lstm": weft.load(place / "lstm")}, TEXT, ExplainConfig())
    time, depth = view.data["runs"][0]["time"]["trained"], view.data["runs"][0]["layers"]["trained"]["norms"]
    shares = relative_norms(TimeGradients(time["layers"], np.array(time["norms"])))
    assert output[1].split()[:2] == ["lstm", "untrained"]
    assert output[2].split() == ["lstm", "trained", f"{shares[9]:.2g}", f"{depth[0] / depth[-1]:.2g}"]
    assert output[5:] == [
        "steps back: gradient norm relative to one step back",
        "lowest: gradient norm below the first layer relative to that above the last",
    ]
    for name in ("x.svg", "x-2.svg"):
        root = ET.fromstring((place / name).read_text())
        legend = {item.text for item in root.iter("{http://www.w3.org/2000/svg}text")}
        assert {"lstm, untrained", "lstm, trained", "transformer, untrained", "transformer, trained"} <= legend
        assert (place / name).read_text().count("stroke-dasharray") == 4  # both at the start, in plot and legend
    short = compare_gradient_flow({"lstm": weft.load(place / "lstm")}, "the", ExplainConfig())
    assert short.lines[0].split() == ["run", "weights", "2", "steps", "back", "lowest"]


def test_run_directories_with_the_same_name_are_shown_by_path(place, capsys, restore_openmp_env):
    words = [str(place / "lstm"), TEXT, "--compare-with", str(place / "more" / "lstm")]
    (view,) = asked(capsys, *words)["views"]
    assert [run["name"] for run in view["runs"]] == [str(place / "lstm"), str(place / "more" / "lstm")]
    assert view["runs"][0]["time"] != view["runs"][1]["time"]


def test_runs_that_cannot_share_a_plot_are_refused(place, tmp_path_factory, capsys, restore_openmp_env):
    lstm, transformer = str(place / "lstm"), str(place / "transformer")
    pairs, labels = Seq2SeqRuns(tmp_path_factory.mktemp("pairs")), LabelRuns(tmp_path_factory.mktemp("labels"))
    translator, ngram = (str(pairs.run_dir("lstm", "train.max_steps=2")), str(pairs.run_dir("lm-ngram")))
    labeller = str(labels.run_dir("labels-gru"))
    for words, message in [
        ([lstm, "--compare-with", transformer, "--view", "logit-lens"],
         "--compare-with: only available for the view gradient-flow, not for logit-lens; remove it"),
        ([lstm, "--compare-with", lstm], f"--compare-with: {lstm} is listed twice"),
        ([transformer, "--compare-with", translator],
         "--compare-with: transformer (lm) and lstm (seq2seq) have different tasks"),
        ([lstm, "--compare-with", ngram], "--compare-with: lm-ngram: ngram has no gradients"),
        ([lstm, "--compare-with", labeller], "--compare-with: not available for task 'classification' (labels-gru); remove it"),
    ]:  # fmt: skip
        assert expect_error(capsys, "explain", words[0], TEXT, *words[1:]) == (2, message)
    with pytest.raises(UsageError) as caught:
        compare_gradient_flow({"a": weft.load(lstm), "b": weft.load(translator)}, TEXT, ExplainConfig())
    assert str(caught.value) == "compare_with: a (lm) and b (seq2seq) have different tasks"


# ---- compiled


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # torch's own, where it leaves a graph
def test_a_run_trained_with_compile_is_explained_like_any_other(tmp_path, graphs, capsys, restore_openmp_env):
    """What is compiled is what training calls; the model that is saved, loaded and looked into is the plain one."""
    values = run_file(make_text(tmp_path / "text.txt"), "gpt", train__max_steps=3, train__compile=True)
    train_here(values, tmp_path / "compiled")
    assert graphs
    values["train"]["compile"] = False
    train_here(values, tmp_path / "plain")
    for what, part in (("attention", "layers"), ("logit-lens", "layers"), ("gradient-flow", "time")):
        views = [asked(capsys, str(tmp_path / name), TEXT, "--view", what)["views"][0] for name in ("compiled", "plain")]
        assert views[0]["tokens"] == views[1]["tokens"] and views[0][part] == views[1][part]


@pytest.mark.parametrize("what", ["attention", "logit-lens"])
def test_a_compiled_model_is_refused_by_name_at_the_command_line(place, what, monkeypatch, capsys, restore_openmp_env):
    load = weft.runs.load.load

    def load_compiled(folder: Path, *, device: str) -> Any:
        run = load(folder, device=device)
        run.model.stack.compile(backend="eager")
        return run

    monkeypatch.setattr(weft.runs.load, "load", load_compiled)
    assert expect_error(capsys, "explain", str(place / "transformer"), TEXT, "--view", what) == (
        2, "record_activations: 'stack' is compiled; load the run again without compiling",
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["transformer", "bahdanau"])
def test_attention_in_beam_search_is_that_of_the_best_hypothesis(tmp_path_factory, kind, capsys, restore_openmp_env):
    """The search reads one token at a time from a cache; where its winner looked then is what the view shows."""
    runs = Seq2SeqRuns(tmp_path_factory.mktemp("pairs"))
    run = weft.load(runs.run_dir(kind, "train.max_steps=3", "train.num_validations=1"))
    (view,) = asked(
        capsys, str(run.directory.path), "badac", "--view", "attention", "--component", "cross", "--beam-size", "1"
    )["views"]
    model = run.members[0].model
    names = cross_attention_modules(model)
    with record_activations(model, names) as seen:
        best = run.predict("badac", beam_size=1)
    steps = [attention_weights(item)[0].detach().numpy() for item in seen if item.name == names[-1]]
    # the first steps measured how much memory a row takes
    stepped = np.concatenate(steps, axis=1)[:, -len(best.token_ids) :]
    np.testing.assert_allclose(view["layers"][-1]["weights"], stepped, atol=1e-4)
    wide = asked(capsys, str(run.directory.path), "badac", "--view", "attention", "--beam-size", "4")["views"][0]
    result = run.predict("badac", beam_size=4)
    assert [token["text"] for token in wide["output"]] == [
        run.vocabulary.target.token_text(number) for number in result.token_ids
    ]
