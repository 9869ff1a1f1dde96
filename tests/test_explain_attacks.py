"""Explanations of hostile or odd input (control characters, unknown words, pruned heads), and agreement with predictions."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
import torch
from command_line import expect_error
from label_runs import LabelRuns
from seq2seq_runs import Seq2SeqRuns, seq2seq_run_file
from small_runs import SilentCallback, train_here
from toy_qa import make_questions, qa_run_file, write_tsv

import weft
from weft.cli.main import main
from weft.config import override
from weft.data.dataset import Dataset
from weft.errors import DataError
from weft.explain.eval_loss import eval_batches, mean_loss
from weft.explain.explanation import Explanation, Figure, align_columns
from weft.explain.page import page
from weft.models.encoder import EncoderInput
from weft.plots.bars import Bar, bars
from weft.plots.diverging_heatmap import diverging_heatmap
from weft.plots.grid import Map, grid
from weft.plots.heatmap import heatmap
from weft.plots.lines import Axis, Series, lines
from weft.plots.scatter import Points, scatter
from weft.plots.similarity_matrix import similarity_matrix
from weft.plots.token_heatmap import token_heatmap
from weft.plots.token_table import TokenGuess, token_table
from weft.plots.tree import Node, tree
from weft.tasks.classification.data import LabeledFormat
from weft.text.reading import pluralize

STEERING = "\x01\x1b\ufffe\x85\u202e"
EVIL = f"{STEERING}</title></style><b>&\"'"
ONE = np.array([[0.5]])
POINTS = np.array([[0.0, 0.0], [1.0, 1.0]])
DRAWN = {
    "tree": lambda: tree([Node(None, EVIL, EVIL, "best", EVIL)]),
    "bars": lambda: bars([(EVIL, [Bar(EVIL, 0.5, 0.5, EVIL, None)])]),
    "predictions": lambda: token_table([[TokenGuess(EVIL, 0.5, EVIL)]], rows=[EVIL], columns=[EVIL], corner=EVIL, note=EVIL),
    "scatter": lambda: scatter([Points(EVIL, POINTS, [EVIL, EVIL])], axes=(EVIL, EVIL), title=EVIL),
    "grid": lambda: grid([(EVIL, [Map(EVIL, ONE, EVIL)])], key="k", title=EVIL),
    "coloured": lambda: token_heatmap([EVIL], np.array([1.0]), name=EVIL, title=EVIL),
    "lines": lambda: lines(
        [Series(EVIL, [0, 1], [0, 1], labels=[EVIL, EVIL])], x_axis=Axis(EVIL), y_axis=Axis(EVIL), title=EVIL
    ),
    "heatmap": lambda: heatmap(ONE, rows=[EVIL], columns=[EVIL], title=EVIL, axes=(EVIL, EVIL)),
    "signed": lambda: diverging_heatmap(ONE, rows=[EVIL], columns=[EVIL], name=EVIL, title=EVIL, axes=(EVIL, EVIL)),
    "matrix": lambda: similarity_matrix(ONE, rows=[EVIL], columns=[EVIL], name=EVIL, title=EVIL, axes=(EVIL, EVIL)),
}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory) -> Seq2SeqRuns:
    return Seq2SeqRuns(tmp_path_factory.mktemp("pairs"))


@pytest.fixture(scope="module")
def labels(tmp_path_factory) -> LabelRuns:
    return LabelRuns(tmp_path_factory.mktemp("labels"))


@pytest.fixture(scope="module")
def qa_run(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("reader")
    data = write_tsv(place / "asked.tsv", make_questions(60))
    values = qa_run_file(data, "transformer", "train.max_steps=8", "model.hidden_size=16", "model.num_heads=2")
    train_here(values, place / "run", SilentCallback())
    return place / "run"


# ---- letters that steer


@pytest.mark.parametrize("name", DRAWN)
def test_every_figure_is_well_formed_whatever_its_text(name):
    svg = DRAWN[name]()
    tags = [element.tag for element in ET.fromstring(svg).iter()]  # refuses what XML may not hold
    assert not any(tag.endswith("}b") for tag in tags) and not set(STEERING) & set(svg)


def test_table_rows_stay_on_one_line_without_control_characters():
    assert align_columns([["a\nb\tc", "\x1b[31m"], ["x", "y"]]) == ["a⏎b⇥c  \\x1b[31m", "x             y"]


def test_a_page_has_one_style_sheet_for_its_figures():
    chart = DRAWN["lines"]()
    view = Explanation("x", EVIL, {}, [Figure("one", chart), Figure("two", chart), Figure(EVIL, DRAWN["heatmap"]())], [EVIL])
    whole = page([view])
    assert whole.count("<style>") == 1 and whole.count("svg.weft-lines{") == 1 == whole.count(".weft-heatmap .paper{fill:#fff}")
    assert whole.count("<svg") == 3 and "<b>" not in whole and "\x1b" not in whole
    assert "<h1>x</h1>" in whole and "<h1>a b</h1>" in page([view], title="a b")


# ---- what is explained is what the run says


def test_beam_size_one_is_the_greedy_output(pairs):
    run, differ = weft.load(pairs.run_dir("sutskever"), device="cpu"), 0
    for text in ("abcde", "fa", "b", "cafe"):
        result = run.predict(text, beam_size=1)
        view = run.explain(text, "beam-search", beam_size=1)
        assert (view.data["output"], view.data["length_penalty"]) == (result.text, 1.0)
        assert view.data["score"] == pytest.approx(result.score, abs=1e-5)
        differ += run.predict(text, beam_size=2).text != result.text
    assert differ  # a search with a length penalty would have gone on


@pytest.mark.slow
def test_explained_tags_are_those_of_viterbi_decoding(labels):
    run = weft.load(labels.run_dir("spans-lstm"), device="cpu")
    model, differ = run.model, 0
    with torch.no_grad():
        model.head.transitions.copy_(3 * torch.randn(model.head.transitions.shape, generator=torch.Generator().manual_seed(1)))
    for text in ("the mr bbbbo sat here", "mr mr a b", "old new bbbs ccco", "a b c d e f"):
        view = run.explain(text, "attribution", method="input-x-gradient")
        assert [output["text"] for output in view.data["outputs"]] == run.predict([text])[0].tags
        alone = [run.explain(text, "attribution", method="input-x-gradient", target=tag).data["outputs"] for tag in run.labels]
        best = [
            max(range(len(alone)), key=lambda tag, index=index: alone[tag][index]["log_prob"])
            for index in range(len(text.split()))
        ]
        differ += [run.labels[tag] for tag in best] != run.predict([text])[0].tags
    assert differ


def test_the_explained_answer_is_the_predicted_one(qa_run):
    run = weft.load(qa_run, device="cpu")
    run.model.head.threshold.fill_(-100.0)  # an answer is always said
    for question, passage, _ in make_questions(12, seed=5):
        answer = run.predict((question, passage))
        first, last = run.explain(f"{question}\t{passage}", "attribution", method="input-x-gradient").data["outputs"]
        assert [first["text"], last["text"]] == [answer.text.split()[0], answer.text.split()[-1]]
    run.model.head.threshold.fill_(100.0)
    view = run.explain(f"{question}\t{passage}", "attribution", method="input-x-gradient")
    assert [output["name"] for output in view.data["outputs"]] == ["start/<s>", "end/<s>"]
    for text, message in (("\ta", "input: empty question"), ("a\t", "input: empty passage")):
        with pytest.raises(DataError) as caught:
            run.explain(text, "attribution")
        assert str(caught.value) == message


def test_next_token_candidates_exclude_tokens_that_are_never_generated(tmp_path):
    words = [f"w{index}" for index in range(40)]
    (tmp_path / "text.txt").write_text("\n".join(" ".join(words[index:] + words[:index]) for index in range(40)) + "\n")
    values = {"task": "lm", "data": {"train": str(tmp_path / "text.txt"), "read_as": "lines", "valid": 0.1}}
    values |= {"tokenizer": {"type": "word", "vocab_size": 8}, "model": {"arch": "ngram"}}
    train_here(values, tmp_path / "run", SilentCallback())
    run = weft.load(tmp_path / "run")
    (output,) = run.explain("w1 w2", "attribution").data["outputs"]
    assert run.model.start(torch.tensor([[1]]))[0].argmax() == run.vocabulary.unk_id  # here is nothing but unknown words
    assert (
        output["text"]
        == run.vocabulary.token_text(run.generate("w1 w2", temperature=0.0, max_new_tokens=1).token_ids[0])
        != "<unk>"
    )


# ---- what nobody knows


def test_a_text_without_known_words_is_refused(labels):
    run = weft.load(labels.run_dir("labels-naive-bayes"), device="cpu")
    for text, method in (("zzz qqq", "coefficients"), ("", "coefficients"), ("", "occlusion")):
        with pytest.raises(DataError) as caught:
            run.explain(text, "attribution", method=method)
        assert str(caught.value) == "input: has no words that the run knows; there is nothing to explain"
    view = run.explain("the\tred\tcat", "attribution", method="occlusion")  # one text, which has tabs
    assert [token["text"] for token in view.data["tokens"]] == ["the", "red", "cat"]


def test_units_of_a_decoder_follow_its_output(pairs, tmp_path):
    values = override(seq2seq_run_file(pairs.pairs), ["train.max_steps=3", "train.num_validations=1"])
    values["model"] = {"arch": "transformer", "hidden_size": 16, "decoder": {"layer_type": "lstm"}}
    train_here(values, tmp_path / "run", SilentCallback())
    view = weft.load(tmp_path / "run", device="cpu").explain("a", "units", target="A B C D E F")
    assert [token["text"] for token in view.data["tokens"]][1:] == list("ABCDEF") and view.data["judged"]["tokens"] == 6


# ---- readers


def test_the_loss_of_a_qa_model_is_that_of_its_windows(qa_run, tmp_path):
    run = weft.load(qa_run, device="cpu")
    rows, nats = [row for row in make_questions(20, seed=9) if row[2]], []
    for question, passage, answer in rows:
        q, p = (run.vocabulary.encode(text).tolist() for text in (question, passage))
        tokens = torch.tensor([[1, *q, 2, *p, 2]])
        segments = (torch.arange(tokens.size(1)) >= len(q) + 2).long()[None]
        scores = run.model(EncoderInput(tokens, torch.ones_like(tokens, dtype=torch.bool), segments))[0].detach()
        first = len(q) + 2 + passage.split().index(answer.split()[0])
        ends = first, first + len(answer.split()) - 1
        nats.append(-sum(float(scores[:, side].log_softmax(0)[end]) for side, end in enumerate(ends)))
    data = write_tsv(tmp_path / "data.tsv", rows)
    result = eval_batches(run, [data], tmp_path, max_tokens=10**6)
    assert mean_loss(result) == pytest.approx(np.mean(nats), rel=1e-5) and sum(item.num_items for item in result) == len(rows)


def test_qa_models_have_geometry_and_similarity_views(qa_run, capsys):
    assert main(["analyze", "geometry", str(qa_run), "-q"]) == 0
    assert re.match(r"text: \d+ tokens; compared with themselves: \d+", capsys.readouterr().out)
    assert main(["analyze", "similarity", str(qa_run), str(qa_run), "--max-words", "60", "--json", "-q"]) == 0
    cka = np.array(json.loads(capsys.readouterr().out)["views"][0]["sides"][0]["cka"])
    assert np.diag(cka) == pytest.approx(1.0)


# ---- heads that are gone


def test_a_run_with_all_heads_pruned_is_refused(labels, tmp_path, capsys):
    whole, bare = labels.run_dir("labels-transformer"), tmp_path / "bare"
    assert main(["prune", str(whole), "--remove", "100%", "--output-dir", str(bare), "--importance", "gradient", "-q"]) == 0
    capsys.readouterr()
    gone = f"heads: all attention heads of {bare} are already pruned"
    assert expect_error(capsys, "prune", str(bare)) == (2, gone)
    reason = "rollout is not available: all self-attention heads of this run were pruned"
    assert expect_error(capsys, "explain", str(bare), "x", "--view", "rollout")[1].startswith(f"--view: {reason}; choose from ")
    assert main(["explain", str(bare), "the red cat", "-q"]) == 0


# ---- files


def test_an_unwritable_output_directory_is_refused_before_any_work(qa_run, tmp_path, capsys):
    path = tmp_path / "x.html"
    path.mkdir()
    assert expect_error(capsys, "analyze", "geometry", str(qa_run), "--output", str(path)) == (
        2,
        f"--output: {path} is a directory; name a file",
    )
    nowhere = tmp_path / "no" / "x.svg"
    message = f"--output: directory {nowhere.parent} does not exist"
    assert expect_error(capsys, "analyze", "geometry", str(qa_run), "--output", str(nowhere)) == (2, message)


def test_counts_of_one_are_singular(tmp_path):
    assert [pluralize(count, "token") for count in (0, 1, 2, 1000)] == ["0 tokens", "1 token", "2 tokens", "1,000 tokens"]
    (tmp_path / "one.tsv").write_text("label\ttext\na\tb\n")
    reported = Dataset((tmp_path / "one.tsv",), LabeledFormat()).summary.describe()
    assert reported.startswith(f"{tmp_path / 'one.tsv'}: 1 example, 1 character, 1 label, utf-8, LF line endings")


def test_a_long_axis_name_keeps_its_end():
    svg = heatmap(ONE, rows=["a"], columns=["b"], axes=("/a/very/long/way/to/" * 9 + "one", "/two"))
    names = re.findall(r"<text[^>]*>([^<]*(?:one|two))</text>", svg)
    assert names[0] == "/two" and re.fullmatch(r"….{5,40}/one", names[1])
