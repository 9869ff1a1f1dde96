"""Minimal pairs: suite formats, scoring with every model family, result tables, and the command."""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command_line import expect_error
from seq2seq_runs import Seq2SeqRuns
from small_runs import train_here

import weft
from weft.cli.main import main
from weft.comparison.minimal_pairs import breakdowns, evaluate_minimal_pairs, rows, scorable_pairs
from weft.data.minimal_pair_files import MinimalPair, first_difference, read_suite
from weft.errors import DataError, UsageError
from weft.metrics.items import total
from weft.metrics.minimal_pairs import pair_accuracy, pair_items
from weft.models.encoder import EncoderInput

pytestmark = pytest.mark.usefixtures("restore_openmp_env")
ROOT = Path(__file__).parents[1]
SHARED = ROOT.parent / "shared" / "data"
KINDS = ("ngram", "conv", "rnn", "lstm", "gru", "transformer", "gpt")
NOUNS, VERBS = [("cat", "cats"), ("dog", "dogs"), ("owl", "owls")], [("sleeps", "sleep"), ("waits", "wait")]


def text() -> str:
    """Every sentence of a small grammar: 'the cat near the dogs sleeps'; a noun of any number precedes the verb."""
    lines = [
        f"the {noun[number]} near the {other[between]} {verb[number]}"
        for noun in NOUNS for other in NOUNS for verb in VERBS for number in (0, 1) for between in (0, 1)
    ]  # fmt: skip
    return "".join(f"{line}\n" for line in lines * 3)


TSV = (
    "good\tbad\tphenomenon\tattractors\n"
    "the cat sleeps\tthe cat sleep\tplain\t0\n"
    "the cat near the dogs sleeps\tthe cat near the dogs sleep\tnear\t1\n"
    "the owls near the dog wait\tthe owls near the dog waits\tnear\t1\n"
    "the dogs near the owls wait\tthe dogs near the owls waits\tnear\t0\n"
)
BLIMP = {
    "sentence_good": "The cat near dogs sleeps here.",
    "sentence_bad": "The cat near dogs sleep here.",
    "one_prefix_prefix": "The cat near dogs",
    "one_prefix_word_good": "sleeps",
    "one_prefix_word_bad": "sleep",
    "field": "morphology",
    "linguistics_term": "subject_verb_agreement",
    "UID": "distractor_agreement_relational_noun",
    "one_prefix_method": True,
}
HEAD = "pattern\tconstr_id\tsent_id\tform\tclass\ttype\tprefix\tn_attr\tlen_prefix\tsent\n"
ONE = "N_V\t0\t1\t{form}\t{kind}\toriginal\tThe cat\t2\t2\t{sent}\n"


def write(path: Path, content: str) -> Path:
    path.write_bytes(gzip.compress(content.encode()) if path.suffix == ".gz" else content.encode())
    return path


def pairs_of(path: Path) -> list[MinimalPair]:
    return read_suite([path]).pairs


# ---- files


def test_tsv_has_sentences_phenomena_and_attractors(tmp_path):
    first, second, *_ = pairs_of(write(tmp_path / "x.tsv", TSV))
    choice = ("the cat sleeps", "the cat sleep")
    assert first == MinimalPair("the cat sleeps", "the cat sleep", "plain", "", 0, choice)
    assert (second.phenomenon, second.attractors, second.forced) == ("near", 1, False)
    (bare,) = pairs_of(write(tmp_path / "y.tsv.gz", "bad\tgood\nx y z\tx w z\n"))
    assert bare == MinimalPair("x w z", "x y z", choice=("x w", "x y"))


def test_the_critical_word_is_the_first_that_differs():
    assert first_difference("a b c", "a  x c") == ("a b", "a x")
    assert first_difference("a b", "a b c") is None
    blimp = [MinimalPair("a b", "a b c"), MinimalPair("a b", "a c", choice=("a b", "a c"))]
    assert scorable_pairs(blimp, None) == scorable_pairs(blimp, "sentence") == blimp
    assert scorable_pairs(blimp, "word") == blimp[1:]


def test_blimp_is_read_by_phenomenon_and_paradigm(tmp_path):
    other = {**BLIMP, "UID": "adjunct_island", "linguistics_term": "island_effects", "one_prefix_method": False}
    path = write(tmp_path / "x.jsonl.gz", "".join(json.dumps(row) + "\n" for row in (BLIMP, other)))
    first, second = pairs_of(path)
    assert (first.good, first.bad) == (BLIMP["sentence_good"], BLIMP["sentence_bad"])
    assert (first.phenomenon, first.paradigm, first.attractors) == ("subject_verb_agreement", BLIMP["UID"], 1)
    assert (first.choice, first.forced) == (("The cat near dogs sleeps", "The cat near dogs sleep"), False)
    assert (second.phenomenon, second.attractors, second.choice) == ("island_effects", None, None)


@pytest.mark.parametrize("end", ["", ".gz"])
def test_linzen_has_positions_in_one_file_and_sentences_in_another(tmp_path, end):
    gold = write(tmp_path / f"a.gold{end}", "3\tSleeps\tSleep\t1\n1\tlie\tlie\t0\n")
    write(tmp_path / f"a.text{end}", "cat near dogs sleeps here . <eos>\nthey lie <eos>\n")
    suite = read_suite([gold])
    assert suite.identical == 1
    choice = ("cat near dogs sleeps", "cat near dogs sleep")
    full = ("cat near dogs sleeps here .", "cat near dogs sleep here .")
    assert suite.pairs == [MinimalPair(*full, "subject_verb_agreement", "a", 1, choice, forced=True)]


def test_gulordava_has_a_line_for_each_form(tmp_path):
    sent = '"The cat sat "" here "" . <eos>"'
    table = HEAD + "".join(
        ONE.format(form=form, kind=kind, sent=sent) for form, kind in (("sleep", "wrong"), ("sleeps", "correct"))
    )
    (pair,) = pairs_of(write(tmp_path / "x.tab", table))
    assert (pair.good, pair.bad) == ('The cat sleeps " here " .', 'The cat sleep " here " .')
    assert (pair.paradigm, pair.attractors, pair.choice) == ("original", 2, ("The cat sleeps", "The cat sleep"))


def test_other_files_in_a_suite_directory_are_skipped_and_named(tmp_path):
    write(tmp_path / "b.tsv", TSV)
    write(tmp_path / "a.jsonl", json.dumps(BLIMP) + "\n")
    write(tmp_path / "about.txt", "hello\n")
    write(tmp_path / "empty.txt", "")
    suite = read_suite([tmp_path])
    assert [path.name for path in suite.paths] == ["a.jsonl", "b.tsv"]
    assert [path.name for path in suite.skipped] == ["about.txt", "empty.txt"]
    assert len(suite.pairs) == 5


KNOWN = (
    "BLiMP JSONL (sentence_good, sentence_bad), TSV with a header (good, bad), Linzen et al. (.gold) or "
    "Gulordava et al. (form, class, prefix, n_attr)"
)
LINE = "{path}:2"
BAD: dict[str, tuple[str, str, str]] = {   # file name, content, message
    "no suite": ("x", "hello you\n", "{path}: not a suite of minimal pairs, first line is 'hello you'; use " + KNOWN),
    "column": (
        "x", "good\tbad\tphenomenom\na\tb\tc\n",
        "{path}:1: unknown column 'phenomenom'; did you mean 'phenomenon'?",
    ),
    "twice": ("x", "good\tbad\tbad\na\tb\tc\n", "{path}:1: 2 columns are named 'bad'; rename all but one"),
    "cells": ("x", "good\tbad\na\n", LINE + ": expected 2 tab-separated columns, got 1: 'a'"),
    "count": (
        "x", "good\tbad\tattractors\na\tb\tmany\n",
        LINE + ": attractors must be an integer from 0 to 999, got 'many'",
    ),
    "empty": ("x", "good\tbad\na\t \n", LINE + ": bad sentence is empty"),
    "same": ("x", "good\tbad\na\ta\n", LINE + ": good and bad sentence are identical: 'a'"),
    "header": ("x", "good\tbad\n", "{path}: no pairs below the header"),
    "json": (
        "x", json.dumps(BLIMP) + "\n{\n",
        LINE + ": invalid JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1); "
        ".jsonl files need one object per line",
    ),
    "object": ("x", json.dumps(BLIMP) + "\n3\n", LINE + ": expected an object with 'sentence_good' and 'sentence_bad', got a number"),
    "gold": ("a.gold", "1\tb\tc\t0\nx\n", LINE + ": expected verb index, verb, wrong form and attractors, got x"),
    "lines": ("a.gold", "1\tb\tc\t0\n", "{path}: 1 lines, but TEXT has 2; use files of the same data set"),
    "verb": (
        "a.gold", "1\tb\tc\t0\n1\tx\ty\t0\n",
        LINE + ": the verb is 'x', but TEXT:2 has 'b' at 1; use files of the same data set",
    ),
    "beyond": (
        "a.gold", "1\tb\tc\t0\n9\tx\ty\t0\n",
        LINE + ": the verb is 'x', but TEXT:2 has 'nothing' at 9; use files of the same data set",
    ),
    "no text": (
        "b.gold", "1\tb\tc\t0\n",
        "{path}: b.text, which has its sentences, not found; put it into the same directory",
    ),
    "class": (
        "x", HEAD + ONE.format(form="a", kind="odd", sent="The cat a"),
        LINE + ": class must be 'correct' or 'wrong', got 'odd'",
    ),
    "both": (
        "x", HEAD + ONE.format(form="a", kind="wrong", sent="The cat a") * 2,
        "{path}:3: form is wrong, as on line 2; write one correct and one wrong form per sentence",
    ),
    "alone": (
        "x", HEAD + ONE.format(form="a", kind="wrong", sent="The cat a"),
        LINE + ": the correct form of this sentence is missing",
    ),
    "prefix": (
        "x", HEAD + "".join(ONE.format(form=kind, kind=kind, sent="A cat a") for kind in ("wrong", "correct")),
        "{path}:3: the sentence does not continue its prefix 'The cat'",
    ),
    "quote": (
        "x", HEAD + ONE.format(form="a", kind="wrong", sent='"The'),
        LINE + ": invalid table row: unexpected end of data; close or double the quote",
    ),
    "width": ("x", HEAD + "a\tb\n", LINE + ": expected 10 tab-separated columns, got 2: 'a', 'b'"),
}  # fmt: skip


@pytest.mark.parametrize("fault", BAD)
def test_an_invalid_suite_is_rejected_with_its_line(tmp_path, fault):
    name, content, message = BAD[fault]
    path, sentences_file = write(tmp_path / name, content), write(tmp_path / "a.text", "a b\na b\n")
    with pytest.raises(DataError) as caught:
        read_suite([path])
    assert str(caught.value) == message.format(path=path).replace("TEXT", str(sentences_file))


def test_a_directory_without_suites_is_rejected(tmp_path):
    write(tmp_path / "x.txt", "hello\n")
    with pytest.raises(DataError) as caught:
        read_suite([tmp_path])
    assert str(caught.value) == f"{tmp_path}: contains no suite of minimal pairs; use {KNOWN}"


def test_invalid_text_is_rejected(tmp_path):
    (tmp_path / "x.tsv").write_bytes(b"good\tbad\na\0b\tc\n")
    with pytest.raises(DataError, match="NUL character"):
        read_suite([tmp_path / "x.tsv"])


# ---- answers


def no_faults(size: int, **flags: list[bool]) -> dict[str, Any]:
    blank = {name: np.zeros(size, bool) for name in ("unknown", "unknown_choice", "equal", "long")}
    return blank | {name: np.array(values) for name, values in flags.items()}


def test_ties_and_indistinguishable_pairs_count_half():
    good = np.array([-1.0, -2.0, -3.0, -4.0, -math.inf, -5.0, -6.0, -math.inf])
    bad = np.array([-2.0, -1.0, -3.0, -4.0 - 1e-7, -math.inf, -9.0, -9.0, -7.0])
    equal = [False] * 5 + [True, False, False]
    long = [False] * 6 + [True, False]
    items = pair_items(good, bad, no_faults(8, equal=equal, long=long))
    assert items.statistics["correct"].tolist() == [1, 0, 0.5, 0.5, 0.5, 0.5, 0.5, 0]
    assert pair_accuracy(total(items.statistics)).item() == pytest.approx(100 * 3.5 / 8)


# ---- models


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A small run of each family over words and lines, one over running text, and a masked LM."""
    directory = tmp_path_factory.mktemp("runs")
    path = write(directory / "text.txt", text())
    training = {"max_steps": 12, "num_validations": 1, "batch_tokens": 256, "lr": 0.01, "device": "cpu"}
    for name in (*KINDS, "windows", "masked"):
        kind = {"windows": "lstm", "masked": "bert"}.get(name, name)
        values: dict[str, Any] = {
            "task": "masked-lm" if name == "masked" else "lm",
            "data": {
                "train": str(path),
                "valid": 0.1,
                "read_as": "windows" if name == "windows" else "lines",
                "context_length": 16,
            },
            "tokenizer": {"type": "word", "vocab_size": 40},
            "model": {"arch": kind} if kind == "ngram" else {"arch": kind, "hidden_size": 16, "num_layers": 1},
        }
        if kind in ("gpt", "transformer", "bert"):
            values["model"]["num_heads"] = 2
        train_here(values | ({} if kind == "ngram" else {"train": training}), directory / name)
    return directory


@pytest.fixture(scope="module")
def suite(runs) -> Path:
    return write(runs / "suite.tsv", TSV)


def log_prob(run: Any, sentence: str, *, end: bool) -> float:
    """Log-probability of a sentence, token by token through the decoding protocol."""
    tokens = [*run.vocabulary.encode(sentence).tolist(), *([run.vocabulary.eos_id] if end else [])]
    with torch.inference_mode():
        scores, state = run.model.start(torch.tensor([run.predictor.bos_ids]))
        total = 0.0
        for token in tokens:
            total += float(scores[0, token])
            scores, state = run.model.step(torch.tensor([token]), state)
    return total


@pytest.mark.parametrize("name", [*KINDS, "windows"])
@pytest.mark.parametrize("by", ["sentence", "word"])
def test_score_sums_token_log_probs_and_score_by_word_has_no_eos(runs, suite, name, by):
    run: Any = weft.load(runs / name, device="cpu")
    pairs = pairs_of(suite)
    items = evaluate_minimal_pairs(run, pairs, by=by)
    for side, of in (("good", 0), ("bad", 1)):
        texts = [(pair.good, pair.bad)[of] if by == "sentence" else pair.choice[of] for pair in pairs if pair.choice]
        expected = [log_prob(run, sentence, end=name != "windows" and by == "sentence") for sentence in texts]
        assert items.statistics[side] == pytest.approx(expected, abs=1e-4)
    better = items.statistics["good"] - items.statistics["bad"]  # n-gram models have ties: words that never occur together
    assert items.statistics["correct"].tolist() == [0.5 if abs(by_much) < 1e-5 else float(by_much > 0) for by_much in better]


def test_mean_score_is_per_token(runs, suite):
    run: Any = weft.load(runs / "lstm", device="cpu")
    pairs = pairs_of(suite)
    full, mean = (evaluate_minimal_pairs(run, pairs, by="sentence", mean=mean).statistics["good"] for mean in (False, True))
    lengths = [len(run.vocabulary.encode(pair.good)) + 1 for pair in pairs]
    assert mean == pytest.approx(full / lengths)


def test_each_suite_has_the_score_of_its_authors(runs):
    run = weft.load(runs / "lstm", device="cpu")
    choice = ("the cat sleeps", "the cat sleep")
    pair = MinimalPair("the cat sleeps near", "the cat sleep near", choice=choice)
    full, forced = evaluate_minimal_pairs(run, [pair]), evaluate_minimal_pairs(run, [pair._replace(forced=True)])
    assert full.statistics["good"] == pytest.approx(evaluate_minimal_pairs(run, [pair], by="sentence").statistics["good"])
    assert forced.statistics["good"] == pytest.approx(evaluate_minimal_pairs(run, [pair], by="word").statistics["good"])
    assert forced.statistics["good"] > full.statistics["good"]


def test_a_masked_lm_masks_one_token_at_a_time(runs, suite):
    run: Any = weft.load(runs / "masked", device="cpu")
    pairs = [pair._replace(forced=True) for pair in pairs_of(suite)]  # still whole sentences
    items = evaluate_minimal_pairs(run, pairs)
    for pair, actual in zip(pairs, items.statistics["good"].tolist(), strict=True):
        tokens = torch.tensor([[run.vocabulary.bos_id, *run.vocabulary.encode(pair.good).tolist(), run.vocabulary.eos_id]])
        total = 0.0
        for index in range(1, tokens.size(1) - 1):
            hidden = tokens.clone()
            hidden[0, index] = run.vocabulary.vocab_size
            with torch.inference_mode():
                y = run.model(EncoderInput(hidden, torch.ones_like(hidden, dtype=torch.bool)))
                total += float(run.model.log_probs(y[0, index])[tokens[0, index]])
        assert actual == pytest.approx(total, abs=1e-4)


def test_unknown_words_are_counted_and_pairs_that_become_equal_count_half(runs):
    run = weft.load(runs / "lstm", device="cpu")
    pairs = [
        MinimalPair("the cat sleeps", "the cat sleep"),
        MinimalPair("the zebra sleeps", "the zebra sleep"),  # unknown, the same in both
        MinimalPair("the cat snores", "the cat sleeps"),  # unknown in the differing word
        MinimalPair("the zebra sleeps", "the gnu sleeps"),  # both unknown: the same token
    ]
    actual = evaluate_minimal_pairs(run, pairs).statistics
    assert actual["unknown"].tolist() == [0, 1, 1, 1]
    assert actual["unknown_choice"].tolist() == [0, 0, 1, 1]
    assert actual["equal"].tolist() == [0, 0, 0, 1]
    assert actual["correct"][3] == 0.5


@pytest.mark.parametrize("name", ["lstm", "masked"])
def test_sentences_beyond_the_maximum_length_count_half(runs, monkeypatch, name):
    run: Any = weft.load(runs / name, device="cpu")
    monkeypatch.setattr(type(run.model), "max_positions", 5)
    pairs = [MinimalPair("the cat", "cat the"), MinimalPair("the cat near the dogs sleeps", "the cat near the dogs sleep")]
    actual = evaluate_minimal_pairs(run, pairs).statistics
    assert actual["long"].tolist() == [0, 1]
    assert actual["correct"][1] == 0.5
    assert actual["good"][0] != actual["bad"][0]


def test_a_bigram_model_agrees_with_the_nearest_noun(tmp_path):
    """In the training text, adjacent nouns and verbs agree; in the test pairs they need not."""
    plain = "".join(f"the {noun[n]} {verb[n]}\n" for noun in NOUNS for verb in VERBS for n in (0, 1)) * 5
    path = write(tmp_path / "text.txt", plain)
    values = {"task": "lm", "data": {"train": str(path), "read_as": "lines"}, "tokenizer": {"type": "word"}}
    train_here({**values, "model": {"arch": "ngram", "order": 2, "smoothing": "add-delta"}}, tmp_path / "run")
    suite = [
        MinimalPair(f"the {a[n]} near the {b[m]} {v[n]}", f"the {a[n]} near the {b[m]} {v[1 - n]}", attractors=int(n != m))
        for a in NOUNS for b in NOUNS for v in VERBS for n in (0, 1) for m in (0, 1)
    ]  # fmt: skip
    actual = {
        row.name: row.scores["x"].value
        for row in rows({"x": [evaluate_minimal_pairs(weft.load(tmp_path / "run"), suite)]}, suite)
    }
    assert actual == {"all": 50, "0": 100, "1": 0, "no attractor": 100, "1 or more attractors": 0}


def test_runs_that_cannot_score_sentences_are_rejected(runs, suite, tmp_path):
    pairs = Seq2SeqRuns(tmp_path)
    run = weft.load(pairs.run_dir("lstm"), device="cpu")
    with pytest.raises(UsageError) as caught:
        evaluate_minimal_pairs(run, pairs_of(suite))
    assert str(caught.value) == (
        f"{tmp_path / 'lstm'}: minimal pairs are not available for task 'seq2seq'; use a run of task 'lm' or 'masked-lm'"
    )
    with pytest.raises(UsageError) as caught:
        evaluate_minimal_pairs(weft.load(runs / "masked"), pairs_of(suite), by="word")
    assert str(caught.value) == f"score_by: {runs / 'masked'} is a masked language model and scores whole sentences; remove it"
    with pytest.raises(UsageError) as caught:
        evaluate_minimal_pairs(weft.load(runs / "lstm"), pairs_of(suite), by="words")
    assert str(caught.value) == "score_by: unknown unit 'words'; did you mean 'word'?"


# ---- tables


def made(correct: list[float]) -> Any:
    values = np.array(correct)
    return pair_items(values, np.full(len(values), 0.5), no_faults(len(values)))


PAIRS = [
    MinimalPair("a", "b", "agreement", "distractor_agreement_x", 1),
    MinimalPair("a", "b", "agreement", "distractor_agreement_x", 1),
    MinimalPair("a", "b", "agreement", "plain", 0),
    MinimalPair("a", "b", "islands", "islands", None),
    MinimalPair("a", "b", "agreement", "plain", 3),
]


def test_rows_are_phenomena_paradigms_attractors_and_recency():
    actual = rows({"x": [made([0, 1, 1, 0.5, 0])], "y": [made([0, 0, 1, 1, 1])]}, PAIRS)
    table = [(row.by, row.name, row.size, row.scores["x"].value, row.scores["y"].value) for row in actual]
    assert table == [
        ("all", "all", 5, 50, 60),
        ("phenomenon", "agreement", 4, 50, 50),
        ("paradigm", "distractor_agreement_x", 2, 50, 0),
        ("paradigm", "plain", 2, 50, 100),
        ("phenomenon", "islands", 1, 50, 100),
        ("attractors", "0", 1, 100, 100),
        ("attractors", "1", 2, 50, 0),
        ("attractors", "3", 1, 0, 100),
        ("recency", "no attractor", 1, 100, 100),
        ("recency", "1 or more attractors", 3, pytest.approx(100 / 3), pytest.approx(100 / 3)),
        ("recency", "distractor paradigms", 2, 50, 0),
    ]
    assert actual[0].scores["x"].low <= 50 <= actual[0].scores["x"].high
    assert actual[4].scores["x"].low is None  # a single pair


def test_intervals_match_those_of_a_proportion():
    chance = np.random.default_rng(0)
    correct = (chance.random(2000) < 0.7).astype(float)
    actual = rows({"x": [made(correct.tolist())]}, [MinimalPair("a", "b")] * 2000)[0].scores["x"]
    wide = 1.96 * math.sqrt(correct.mean() * (1 - correct.mean()) / 2000) * 100
    assert (actual.value - actual.low, actual.high - actual.value) == pytest.approx((wide, wide), abs=0.25)


def test_seeds_of_a_run_share_a_column_and_rows_become_breakdowns():
    actual = rows({"x": [made([0, 1, 1, 0, 0]), made([1, 1, 1, 0, 0])]}, PAIRS)
    assert actual[0].scores["x"].value == pytest.approx(50)
    made_of = breakdowns(actual)
    assert [(item["by"], item["bins"]) for item in made_of] == [
        ("phenomenon (minimal pairs)", ["all", "agreement", "islands"]),
        ("paradigm (minimal pairs)", ["distractor_agreement_x", "plain"]),
        ("attractors between subject and verb (minimal pairs)", ["0", "1", "3"]),
        (
            "syntax or recency (minimal pairs)",
            ["no attractor", "1 or more attractors", "distractor paradigms"],
        ),
    ]
    assert (made_of[0]["metric"], made_of[0]["unit"]) == ({"name": "accuracy", "better": "higher"}, "pairs")
    assert made_of[2]["counts"] == [1, 2, 1]
    assert made_of[2]["values"] == {"x": [100, 75, 0]}
    json.dumps(made_of, allow_nan=False)


@pytest.mark.parametrize(
    ("phenomena", "bins"),
    [(["", ""], ["all"]), (["a", "a"], ["a"]), (["a", ""], ["all", "a"]), (["a", "b"], ["all", "a", "b"])],
)
def test_all_pairs_are_a_row_unless_there_is_one_phenomenon(phenomena, bins):
    (actual,) = breakdowns(rows({"x": [made([1, 0])]}, [MinimalPair("a", "b", name) for name in phenomena]))
    assert (actual["by"], actual["bins"]) == ("phenomenon (minimal pairs)", bins)


def test_intervals_over_seeds_stay_between_0_and_100():
    calls: list[tuple[int, int]] = []
    actual = rows(
        {"x": [made([1, 1, 1, 1, 0]), made([1, 1, 1, 1, 1])]}, PAIRS, progress=lambda done, total: calls.append((done, total))
    )
    assert (actual[0].scores["x"].value, actual[0].scores["x"].high) == (90, 100)
    assert calls[-1][0] == calls[-1][1] == sum(row.size for row in actual) and len(calls) == len(actual)


# ---- the command


def test_command_compares_runs(runs, suite, tmp_path, capsys):
    out, csv_file = tmp_path / "t.csv", tmp_path / "p.csv"
    words = ["analyze", "minimal-pairs", str(runs / "ngram"), str(runs / "masked"), "--suite", str(suite)]
    assert main([*words, "--csv", str(out), "--save-pairs", str(csv_file)]) == 0
    output, err = capsys.readouterr()
    assert err == ""
    lines = [line.rstrip() for line in output.split("\n")]
    assert lines[0].split() == ["accuracy", "(%)", "pairs", "ngram", "masked"]
    assert [line.split()[0] for line in lines[1:4]] == ["all", "plain", "near"]
    assert "syntax or recency" in lines
    assert lines[-2] == f"weft:{weft.__version__}|by:suite|sum|all|ties:half|pairs:4|resamples:1000|interval:95%"
    assert main([*words, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    table = list(csv.reader(io.StringIO(out.read_text())))
    assert table[0] == ["by", "name", "pairs", "ngram", "ngram low", "ngram high", "masked", "masked low", "masked high"]
    assert [row[:3] for row in table[1:]] == [[row["by"], row["name"], str(row["pairs"])] for row in data["rows"]]
    assert [float(row[3]) for row in table[1:]] == [row["accuracy"]["ngram"]["value"] for row in data["rows"]]
    assert data["counts"]["ngram"] == {"unknown": 0, "unknown_choice": 0, "equal": 0, "long": 0}
    assert set(data["follows"]) == {"ngram", "masked"}
    assert data["runs"] == {"ngram": str(runs / "ngram"), "masked": str(runs / "masked")}
    pairs = list(csv.DictReader(io.StringIO(csv_file.read_text())))
    assert [row["good"] for row in pairs] == [pair.good for pair in pairs_of(suite)]
    mean = 100 * np.mean([float(row["masked correct"]) for row in pairs])
    assert mean == data["rows"][0]["accuracy"]["masked"]["value"]


def test_command_can_skip_pairs_with_unknown_words(runs, tmp_path, capsys):
    path = write(tmp_path / "x.tsv", TSV + "the cat snores\tthe cat snore\tnew\t0\n" * 2)
    words = ["analyze", "minimal-pairs", str(runs / "lstm"), "--suite", str(path)]
    assert main(words) == 0
    out, err = capsys.readouterr()
    assert err == "weft: note: 1 pairs are duplicates and count twice\n"
    assert "pairs with equal tokens (count half)" in out
    assert main([*words, "--skip-unknown", "--json", "--score-by", "sentence", "--mean-log-prob"]) == 0
    out, err = capsys.readouterr()
    assert err.split("\n")[1] == "weft: note: skipped 2 of 6 pairs that differ in an unknown word"
    data = json.loads(out)
    assert (data["rows"][0]["pairs"], data["counts"]["lstm"]["equal"]) == (4, 0)
    assert data["signature"].split("|")[1:5] == ["by:sentence", "mean", "known", "ties:half"]


def test_command_reports_skipped_files_and_pairs(runs, tmp_path, capsys):
    write(tmp_path / "a.tsv", "good\tbad\nthe cat\tthe cat cat\ncat\tdog\n")
    write(tmp_path / "note.txt", "hello\n")
    assert (
        main(["analyze", "minimal-pairs", str(runs / "lstm"), "--suite", str(tmp_path), "--score-by", "word", "--csv", "-"])
        == 0
    )
    out, err = capsys.readouterr()
    assert out.split("\n")[1].startswith("all,all,1,")
    assert err == (
        f"weft: note: skipped {tmp_path / 'note.txt'}: not a suite of minimal pairs\n"
        "weft: note: skipped 1 pairs that differ in more than one word\n"
    )


def test_command_rejects_invalid_options(runs, suite, tmp_path, capsys):
    path = write(tmp_path / "x.tsv", "good\tbad\nthe cat\tthe cat cat\n")
    run = str(runs / "lstm")
    message = "--score-by word: none of the 1 pairs differs in exactly one word; use --score-by sentence"
    assert expect_error(capsys, "analyze", "minimal-pairs", run, "--suite", str(path), "--score-by", "word") == (3, message)
    message = "--score-by: unknown unit 'letter'; choose from sentence, word"
    assert expect_error(capsys, "analyze", "minimal-pairs", run, "--suite", str(path), "--score-by", "letter") == (2, message)
    message = f"{suite}: a file, not a run directory; repeat --suite before every file, or name their directory"
    assert expect_error(capsys, "analyze", "minimal-pairs", run, str(suite), "--suite", str(path)) == (2, message)
    path = write(tmp_path / "y.tsv", "good\tbad\nthe gnu\tthe cat\n")
    message = "--skip-unknown: all 1 pairs differ in a word that is unknown to some run"
    assert expect_error(capsys, "analyze", "minimal-pairs", run, "--suite", str(path), "--skip-unknown", "--quiet") == (
        3,
        message,
    )


def test_command_rejects_unwritable_outputs_before_scoring(runs, suite, tmp_path, capsys):
    (tmp_path / "folder").mkdir()
    words = ["analyze", "minimal-pairs", str(runs / "lstm"), "--suite", str(suite)]
    table, nowhere, folder = (str(tmp_path / name) for name in ("a.csv", "none/a.csv", "folder"))
    for options, message in (
        (["--csv", nowhere], f"--csv: directory {tmp_path / 'none'} does not exist"),
        (["--save-pairs", folder], f"--save-pairs: {folder} is a directory; name a file"),
        (["--csv", table, "--save-pairs", table], f"--csv and --save-pairs: both name {table}; use two files"),
    ):
        assert expect_error(capsys, *words, *options) == (2, message)


def test_runs_with_equal_names_are_labeled_by_path(runs, suite, tmp_path, monkeypatch, capsys):
    (tmp_path / "lstm").symlink_to(runs / "gru")
    monkeypatch.chdir(tmp_path)
    assert (
        main(["analyze", "minimal-pairs", "lstm", str(runs / "lstm"), str(runs / "lstm"), "--suite", str(suite), "--json"]) == 0
    )
    assert set(json.loads(capsys.readouterr().out)["runs"]) == {"lstm", str(runs / "lstm")}


# ---- what is shipped, and what is published


def test_example_suite_equals_the_output_of_its_script():
    made_now = runpy.run_path(str(ROOT / "examples" / "make_agreement.py"))["pairs"]()
    pairs = pairs_of(ROOT / "examples" / "suites" / "agreement.tsv")
    assert [(pair.good, pair.bad) for pair in pairs] == [row[:2] for row in made_now]
    assert len(set(pairs)) == len(pairs) == 200
    assert {pair.phenomenon for pair in pairs[:10]} == {"verb", "pronoun", "home"}
    assert all(sum(a != b for a, b in zip(pair.good.split(), pair.bad.split(), strict=False)) <= 2 for pair in pairs)


@pytest.mark.skipif(not (SHARED / "blimp").exists(), reason="the published suites are not at hand")
def test_published_suites_are_read_completely():
    blimp = read_suite([SHARED / "blimp"])
    assert len(blimp.pairs) == 13_000
    assert [path.name for path in blimp.skipped] == ["human_validation_summary.csv", "models_summary.jsonl"]
    linzen = read_suite([SHARED / "agreement-linzen"])
    assert (len(linzen.pairs), linzen.identical) == (7_485, 4)
    counted = np.bincount([pair.attractors for pair in linzen.pairs])
    assert counted.tolist() == [1970, 1957, 1943, 1285, 330]
    colorless = pairs_of(SHARED / "agreement-colorless" / "english.generated.tab")
    kinds = [pair.paradigm for pair in colorless]
    assert (kinds.count("original"), kinds.count("generated")) == (41, 369)  # as in the paper
