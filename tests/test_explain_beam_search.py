"""The beam search view: the search tree and the candidates of each step, against plain Python."""

from __future__ import annotations

import math
import re
import shlex
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from seq2seq_runs import Seq2SeqRuns
from small_runs import make_text, run_file, train_here
from toy_decoding import TOY_MODELS

import weft
from weft.cli.main import app
from weft.decode.beam import BeamOptions, beam_search
from weft.decode.logits_processors import ban_tokens
from weft.errors import DataError, UsageError
from weft.explain.beam_search import SearchTree, beam_search_tree, why_no_search
from weft.explain.distribution import distribution, why_no_distribution
from weft.explain.options import ExplainConfig
from weft.explain.views import VIEWS
from weft.plots.bars import Bar, bars
from weft.plots.tree import KINDS, Node, tree

END, WORDS = 2, 7


def plainly(model, options: BeamOptions, banned: list[int]) -> tuple[list[tuple[tuple[int, ...], float, str]], tuple[int, ...]]:
    """Beam search over lists: every candidate that was looked at, with its sum and its fate, and the best."""
    alive, looked, ended = {(): 0.0}, [], {}
    for length in range(1, options.max_new_tokens + 1):
        candidates = []
        for output, total in alive.items():
            log_probs = model.start(torch.tensor([[1, *output]]))[0][0].double().tolist()
            within = sorted(
                ((total + value, (*output, word)) for word, value in enumerate(log_probs) if word not in banned), reverse=True
            )
            candidates += within[: 2 * options.beam_size]
        candidates = sorted(candidates, reverse=True)[: 2 * options.beam_size]
        going = {}
        for place, (total, output) in enumerate(candidates):
            if output[-1] == END:
                fate = "ended" if place < options.beam_size else "late"
                if fate == "ended":
                    ended[output] = total / length**options.length_penalty
            else:
                fate = "kept" if len(going) < options.beam_size else "cut"
                if fate == "kept":
                    going[output] = total
            looked.append((output, total, fate))
        alive = going
        hope = max(alive.values()) / options.max_new_tokens**options.length_penalty
        if length == options.max_new_tokens:
            ended |= {output: total / length**options.length_penalty for output, total in alive.items()}
            looked = [(output, total, "limit" if output in alive else fate) for output, total, fate in looked]
        elif len(ended) >= options.max_finished or (ended and max(ended.values()) >= hope):
            early = "stopped" if len(ended) >= options.max_finished else "hopeless"
            looked = [(output, total, early if output in alive else fate) for output, total, fate in looked]
            break
    return looked, max(ended, key=ended.__getitem__)


@pytest.mark.parametrize("toy", ["hashed", "gru"])  # a bigram has many hypotheses of one score
@pytest.mark.parametrize(
    "options",
    [
        BeamOptions(3, 6, END),
        BeamOptions(2, 5, END, 1.0),
        BeamOptions(4, 4, END, 0.5),
        BeamOptions(3, 9, END, 2.0, patience=1.0),
    ],
)
@pytest.mark.parametrize("banned", [[], [0, 1, 4]])
def test_the_tree_equals_beam_search_in_plain_python(toy, options, banned):
    model = TOY_MODELS[toy](WORDS)
    result = SearchTree(options)
    ((best,),) = beam_search(
        model, torch.tensor([[1]]), options=options, processor=result.record_banned(ban_tokens(banned)), progress=result.record
    )
    result.finish()
    expected, winner = plainly(model, options, banned)
    own = [step for step in result.nodes[1:] if step.fate != "banned"]
    output = [tuple(result.output(index)) for index, step in enumerate(result.nodes) if index and step.fate != "banned"]
    assert list(zip(output, [step.fate for step in own], strict=True)) == [(output, fate) for output, _, fate in expected]
    np.testing.assert_allclose([step.log_prob for step in own], [total for _, total, _ in expected], atol=1e-5)
    for step in own:
        assert step.score == pytest.approx(step.log_prob / step.length**options.length_penalty)
    assert tuple(best.tokens) == winner
    assert ("stopped" in {step.fate for step in own}) == (options.patience is not None and bool(banned))
    way = result.path(best.tokens)
    assert [result.nodes[index].token for index in way] == best.tokens
    assert result.nodes[way[-1]].score == pytest.approx(best.score)


def test_banned_candidates_are_reported():
    """At each step the banned tokens that would have gone on, were they allowed."""
    model, options, banned = TOY_MODELS["hashed"](WORDS), BeamOptions(3, 5, END), [0, 3, 5]
    result = SearchTree(options)
    beam_search(
        model, torch.tensor([[1]]), options=options, processor=result.record_banned(ban_tokens(banned)), progress=result.record
    )
    lost = [step for step in result.nodes if step.fate == "banned"]
    assert lost and {step.token for step in lost} <= set(banned)
    for step in lost:
        output = result.output(step.parent) if step.parent else []
        value = model.start(torch.tensor([[1, *output]]))[0][0, step.token].item()
        assert step.log_prob == pytest.approx(result.nodes[step.parent].log_prob + value, abs=1e-5)
        alive = [other.log_prob for other in result.nodes if other.length == step.length and other.fate in ("kept", "hopeless")]
        assert not alive or step.log_prob > min(alive)


# ---- views


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Seq2SeqRuns:
    return Seq2SeqRuns(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def lstm(tmp_path_factory):
    place = tmp_path_factory.mktemp("lm")
    return weft.load(train_here(run_file(make_text(place / "text.txt"), "lstm"), place / "run").path)


@pytest.mark.parametrize("name", ["lstm", "transformer", "bahdanau"])
def test_the_best_leaf_equals_predict(runs, name):
    run = weft.load(runs.run_dir(name))
    view = beam_search_tree(run, "fade", ExplainConfig(beam_size=4))
    result = run.predict("fade", beam_size=4)
    assert view.data["output"] == result.text and view.data["score"] == pytest.approx(result.score)
    way = [hypothesis for hypothesis in view.data["hypotheses"] if hypothesis["best"]]
    assert [hypothesis["token"] for hypothesis in way] == [
        run.vocabulary.target.token_text(token) for token in result.token_ids
    ]
    assert way[-1]["score"] == pytest.approx(result.score, abs=1e-5)
    assert [hypothesis["parent"] for hypothesis in way] == [0, *(hypothesis["id"] for hypothesis in way[:-1])]
    assert {hypothesis["fate"] for hypothesis in view.data["hypotheses"]} <= set(KINDS)
    ET.fromstring(view.figures[0].svg)
    patient = beam_search_tree(run, "fade", ExplainConfig(beam_size=4, patience=1))
    assert patient.data["output"] == run.predict("fade", beam_size=4, patience=1).text
    assert len(patient.data["hypotheses"]) <= len(view.data["hypotheses"])


def test_the_best_leaf_equals_generate(lstm, runs):
    for run, text in ((lstm, "the "), (weft.load(runs.run_dir("lm-ngram")), "F A")):
        view = beam_search_tree(run, text, ExplainConfig(beam_size=3, max_new_tokens=6, length_penalty=0.7))
        result = run.generate(text, beam_size=3, max_new_tokens=6, length_penalty=0.7)
        assert view.data["score"] == pytest.approx(result.score)
        assert [hypothesis["token"] for hypothesis in view.data["hypotheses"] if hypothesis["best"]] == [
            run.vocabulary.token_text(token) for token in result.token_ids
        ]
    assert why_no_search(lstm) is None and why_no_distribution(lstm) is None
    both = weft.ensemble([runs.run_dir("lstm"), runs.run_dir("luong")])
    assert why_no_search(both) == why_no_distribution(both) == "ensembles and shallow fusion cannot be explained"


def test_a_tree_that_is_too_large_is_refused(lstm, monkeypatch):
    monkeypatch.setattr("weft.explain.beam_search.MAX_NODES", 20)
    with pytest.raises(
        UsageError, match=r"beam search: \d+ hypotheses of \d+ tokens; a tree of more than 20 is not shown; lower"
    ):
        beam_search_tree(lstm, "a", ExplainConfig(beam_size=3, max_new_tokens=50))


def test_beam_size_one_is_greedy_in_every_command(lstm, runs):
    """`generate`, `predict` and `explain` alike, at any alpha: all end at the first end."""
    words = weft.load(runs.run_dir("lm-ngram"))
    for text in ("", "F", "F A", "K"):
        greedy = words.generate(text, temperature=0.0, max_new_tokens=9)
        for alpha in (0.0, 1.0, 3.0):
            result = words.generate(text, beam_size=1, length_penalty=alpha, max_new_tokens=9)
            assert (result.text, result.token_ids) == (greedy.text, greedy.token_ids)
            assert result.log_prob == pytest.approx(greedy.log_prob)
            view = beam_search_tree(words, text, ExplainConfig(beam_size=1, length_penalty=alpha, max_new_tokens=9))
            assert view.data["output"] == greedy.text.lstrip()
    for name in ("lstm", "transformer"):
        run = weft.load(runs.run_dir(name))
        for text in ("fade", "bad", "e"):
            greedy = run.predict(text, temperature=0.0)
            for alpha in (0.0, 1.0, 3.0):
                assert run.predict(text, beam_size=1, length_penalty=alpha).token_ids == greedy.token_ids
                view = beam_search_tree(run, text, ExplainConfig(beam_size=1, length_penalty=alpha))
                assert view.data["output"] == greedy.text and view.data["length_penalty"] == alpha
                kept = [
                    hypothesis for hypothesis in view.data["hypotheses"] if hypothesis["fate"] in ("kept", "ended", "limit")
                ]
                assert kept == [hypothesis for hypothesis in view.data["hypotheses"] if hypothesis["best"]]


def test_a_source_that_is_too_long_is_refused_by_every_view(runs):
    """Without the cure that other commands have: no view shows a part of a text."""
    run = weft.load(runs.run_dir("lstm"))
    for what in ("attention", "beam-search", "distribution", "attribution"):
        with pytest.raises(DataError) as caught:
            run.explain("a" * 40, what)
        assert str(caught.value) == "input: 41 tokens exceed the model's limit of 16; shorten it"


def softmax(scores: np.ndarray) -> np.ndarray:
    result = np.exp(scores - scores.max())
    return result / result.sum()


def test_distributions_before_and_after_filtering_equal_filters_by_hand(lstm):
    options = ExplainConfig(target="cat", temperature=0.7, top_k=6, top_p=0.8, top=50)
    view = distribution(lstm, "the ", options)
    assert view.data["filters"] == ["banned tokens", "temperature 0.7", "top-k 6", "top-p 0.8"]
    assert [token["text"] for token in view.data["tokens"]] == ["c", "a", "t"]
    text = "the "
    for letter, step in zip("cat", view.data["steps"], strict=True):
        with torch.no_grad():
            own = (
                lstm.model.start(torch.tensor([[*lstm.predictor.bos_ids, *lstm.vocabulary.encode(text)]]))[0][0]
                .double()
                .numpy()
            )
        before = np.exp(own)
        allowed = own.copy()
        allowed[[0, 1, 2]] = -math.inf
        allowed = allowed / 0.7
        allowed[np.argsort(-allowed)[6:]] = -math.inf
        share = softmax(allowed)
        order = np.argsort(-share)
        kept = order[: 1 + int(np.searchsorted(share[order].cumsum(), 0.8))]
        after = np.zeros_like(share)
        after[kept] = softmax(allowed[kept])
        for token in step["tokens"]:
            number = int(lstm.vocabulary.encode(token["token"])[0]) if len(token["token"]) == 1 else None
            if number is not None:
                assert token["before"] == pytest.approx(before[number], abs=1e-5)
                assert token["after"] == pytest.approx(after[number], abs=1e-4)
                assert (token["filtered_by"] is None) == (after[number] > 0)
        cut = {token["filtered_by"] for token in step["tokens"]} - {None}
        assert cut <= {"banned tokens", "top-k 6", "top-p 0.8"} and "top-k 6" in cut
        assert step["remaining"] == [lstm.vocabulary.vocab_size - 3, lstm.vocabulary.vocab_size - 3, 6, len(kept)]
        assert step["mass"] == pytest.approx(before[kept].sum(), abs=1e-5)
        assert step["entropy"] == pytest.approx(-(before * own).sum(), abs=1e-4)
        assert [token["token"] for token in step["tokens"] if token["chosen"]] == [letter]
        text += letter
    ET.fromstring(view.figures[0].svg)


def test_without_a_target_the_output_of_the_model_is_explained(lstm, runs):
    view = distribution(lstm, "the ", ExplainConfig(max_new_tokens=4, min_p=0.1))
    assert (
        "".join(token["text"] for token in view.data["tokens"]) == lstm.generate("the ", temperature=0.0, max_new_tokens=4).text
    )
    for step in view.data["steps"]:
        came = next(token for token in step["tokens"] if token["chosen"])
        assert came["filtered_by"] is None and came["after"] >= came["before"]
    run = weft.load(runs.run_dir("luong"))
    view = distribution(run, "fade", ExplainConfig(top_k=2))
    nats = -np.array(run.score([("fade", run.predict("fade").text)])[0].token_log_probs)
    before = [next(token for token in step["tokens"] if token["chosen"])["before"] for step in view.data["steps"]]
    np.testing.assert_allclose(before, np.exp(-nats), atol=1e-4)
    assert all(step["remaining"][-1] == 2 for step in view.data["steps"])


def test_a_text_without_continuation_is_refused(lstm):
    with pytest.raises(UsageError) as caught:
        distribution(lstm, "the", ExplainConfig(target=""))
    assert str(caught.value) == "input: the model generates no token after it; set `target` or use another text"


# ---- the manual


@pytest.mark.parametrize("page", ["how-to/explain-a-prediction.md", "concepts/vanishing-gradients.md"])
def test_docs_pages_name_commands_views_and_options_that_exist(page):
    text = (Path(__file__).parents[1] / "docs" / page).read_text().replace("\\\n", " ")
    group = typer.main.get_command(app)
    results = [shlex.split(line) for line in re.findall(r"^(?:\$ )?(weft .*)", text, re.MULTILINE)]
    results += [shlex.split(code) for code in re.findall(r"`(weft [a-z]+ [^`]*)`", text)]
    assert len(results) >= 4
    for _, name, *words in results:
        known = {flag for param in group.commands[name].params for flag in param.opts}
        assert {word for word in words if word.startswith("--")} <= known, words
        assert {words[index + 1] for index, word in enumerate(words) if word == "--view"} <= set(VIEWS)
    if page.startswith("how-to"):
        table = text.partition("| `--view` |")[2].partition("\n\n")[0]
        assert set(re.findall(r"^\| `([a-z-]+)` \|", table, re.MULTILINE)) == set(VIEWS)


# ---- pictures


def test_no_two_edges_of_a_tree_cross():
    chance, nodes = np.random.default_rng(0), [Node(None, "start", "", "best", "")]
    columns = [[0]]
    for _ in range(5):
        parents = sorted(chance.choice(columns[-1], 6).tolist(), key=lambda index: chance.random())
        columns.append(list(range(len(nodes), len(nodes) + 6)))
        nodes += [Node(parent, f"<{parent}", "-1.0", "kept", "a & b") for parent in parents]
    root = ET.fromstring(tree(nodes))
    boxes = [box for box in root.findall(".//{*}rect") if box.get("class") == "box"][: len(nodes)]
    height = [float(box.get("y")) for box in boxes]
    for column in columns[1:]:
        ordered = sorted(column, key=lambda index: height[index])
        above = [height[nodes[index].parent] for index in ordered]
        assert above == sorted(above)
        assert len({height[index] for index in column}) == len(column)


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([], "tree: 0 of 0 nodes have an unknown kind or precede their parent"),
        ([Node(None, "a", "", "lost", "")], "tree: 1 of 1 nodes have an unknown kind or precede their parent"),
        ([Node(0, "a", "", "kept", "")], "tree: 1 of 1 nodes have an unknown kind or precede their parent"),
    ],
)
def test_an_invalid_tree_is_refused(nodes, message):
    with pytest.raises(UsageError) as caught:
        tree(nodes)
    assert str(caught.value) == message


def test_bar_lengths_are_proportional_to_probabilities():
    svg = bars([("1. a", [Bar("a", 0.5, 1.0, "told", is_chosen=True), Bar("<b>", 0.25, 0.0, "told", "top-k 1")])])
    root = ET.fromstring(svg)
    long = [float(box.get("width")) for box in root.findall(".//{*}rect") if box.get("class") in ("before", "after")][:4]
    assert long == [55.0, 110.0, 27.5, 0.0]
    assert "top-k 1" in [text.text for text in root.findall(".//{*}text")]
    with pytest.raises(UsageError) as caught:
        bars([("1. a", [])])
    assert str(caught.value) == "bars: nothing to draw: each group needs a bar"
