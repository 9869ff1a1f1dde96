"""The tokens that precede a text of its own: BOS tokens that occur in training."""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_runs import MODELS, SilentCallback, make_corpus, run_file, train_here

import weft
from weft.cli.main import main
from weft.data.bos import find_bos, read_bos, with_bos, write_bos
from weft.decode.options import GenerationConfig
from weft.errors import DataError, ModelError, UsageError
from weft.explain.inputs import read
from weft.explain.options import ExplainConfig
from weft.runs.run import Run
from weft.text.tokenizers import Tokenizer, TokenizerConfig, train_tokenizer

NAMES = ["Ida", "Emil", "Nora", "Ben"]
THINGS = ["a red coat", "the old map", "a letter", "her key"]


def tales(count: int, *, between: str = "\n", seed: int = 0) -> str:
    """Sentences with capitals at their beginnings; a line each, or all in one."""
    chance = random.Random(seed)
    return between.join(f"{chance.choice(NAMES)} finds {chance.choice(THINGS)}." for _ in range(count)) + between


def tokenizer_of(kind: str, text: str) -> Tokenizer:
    return train_tokenizer(TokenizerConfig(type=kind, vocab_size=300), iter([text]))


def shown(kind: str, text: str, trained_on: str | None = None) -> str | None:
    tokenizer = tokenizer_of(kind, trained_on or text)
    return find_bos(make_corpus(tokenizer.encode(text).tolist()), tokenizer)


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, Run]:
    place = tmp_path_factory.mktemp("openings")
    (place / "lines.txt").write_text(tales(300))
    (place / "one.txt").write_text(tales(300, between=" "))
    found = dict[str, Run]()
    for name, (text, model, read_as) in {
        "ngram": ("lines.txt", {"arch": "ngram", "order": 3, "smoothing": "mle"}, "windows"),
        "lstm": ("lines.txt", MODELS["lstm"], "stream"),
        "gpt": ("lines.txt", MODELS["gpt"], "windows"),
        "lines": ("lines.txt", MODELS["lstm"], "lines"),
        "sentences": ("one.txt", MODELS["transformer"], "windows"),
    }.items():
        values = run_file(place / text, data__read_as=read_as) | {"model": dict(model)}
        values |= {"train": {}} if name == "ngram" else {}
        train_here(values, place / name)
        run = weft.load(place / name, device="cpu")
        assert isinstance(run, Run)
        found[name] = run
    return found


# ---- which one


@pytest.mark.parametrize("kind", ["char", "byte", "bpe", "unigram", "word", "whitespace", "wordpiece"])
def test_bos_is_the_newline_for_every_tokenizer(kind):
    # the kind `space` has no full stop by itself
    assert shown(kind, tales(100)) == ("\n" if kind == "whitespace" else ".\n")
    assert shown(kind, tales(100).replace(".", "")) == "\n"
    # paragraphs, of which the first lines are beginnings
    assert shown(kind, tales(100).replace(".\n", ".\n\n")) == "\n\n"
    # a few blank lines are no paragraphs
    assert shown(kind, tales(100).replace(".\n", "\n") + "\n\nIda" * 5) == "\n"


@pytest.mark.parametrize(
    ("kind", "opening"),
    [("char", ". "), ("byte", ". "), ("word", ". "), ("wordpiece", ". "), ("bpe", "."), ("whitespace", None)],
)
def test_text_without_newlines_starts_like_a_sentence(kind, opening):
    """After a full stop and a space, where a space is a token of its own, or lost; of bpe it belongs to the word after it.
    `space` leaves no full stop alone."""
    assert shown(kind, tales(100, between=" ")) == opening


@pytest.mark.parametrize("kind", ["char", "byte", "bpe", "word"])
def test_tokens_unseen_in_training_are_not_used_as_bos(kind):
    assert shown(kind, "abab" * 200) is None
    # a newline that ends the file comes before nothing, and one in ten thousand tokens is too few
    assert shown(kind, "ab ba " * 200 + "\n") is None
    assert shown(kind, "ab\nba " * 1 + "ab ba " * 20_000) is None


def test_an_external_tokenizer_may_have_no_newline():
    assert shown("char", tales(100), trained_on="abc") is None


# ---- one start for all that reads a text


def test_the_first_character_has_its_frequency_at_line_starts(runs):
    """Of a 3-gram without smoothing: how often a letter follows a full stop and a newline in the training text."""
    run = runs["ngram"]
    text = "".join(run.config.datasets["train"].texts())
    follows = Counter(text[at + 1] for at in range(len(text) - 1) if text[at - 1 : at + 1] == ".\n")
    for name in NAMES:
        expected = math.log(follows[name[0]] / follows.total())
        assert run.score(name).token_log_probs[0] == pytest.approx(expected, abs=1e-6)
    assert run.score("x").log_prob == -math.inf
    drawn = [one.text[0] for one in run.generate("", max_new_tokens=3, num_samples=50).ranked()]
    assert set(drawn) == {name[0] for name in NAMES}


@pytest.mark.parametrize("name", ["ngram", "lstm", "gpt", "lines", "sentences"])
def test_all_views_of_a_text_use_the_same_bos(runs, name):
    run, text = runs[name], "Ida finds"
    opening = {"lines": [1], "sentences": [*run.vocabulary.encode(". ")]}.get(name, [*run.vocabulary.encode(".\n")])
    assert run.predictor.bos_ids == opening
    tokens = [*opening, *run.vocabulary.encode(text).tolist()]
    with torch.no_grad():
        wanted = run.model.score(torch.tensor([tokens]))[0, len(opening) - 1 :].numpy()
        following = run.model.start(torch.tensor([tokens]))[0][0].clone()
    scored = run.score([text, "a"])[0]
    np.testing.assert_allclose(scored.token_log_probs[: len(wanted)], wanted, atol=1e-5)
    assert len(scored.tokens) == len(wanted) + (name == "lines")
    following[[0, 1, *([] if name == "lines" else [2])]] = -math.inf
    best = int(following.argmax())
    greedy = run.generate(text, max_new_tokens=1, temperature=0.0)
    assert greedy.token_ids == [best]
    assert "".join(run.stream(text, max_new_tokens=1, temperature=0.0)) == greedy.text
    assert run.generate(text, max_new_tokens=1, beam_size=2).token_ids == [best]
    bits = run.explain(text, "surprisal").data["bits"]
    np.testing.assert_allclose(np.array(bits[: len(wanted)]) * math.log(2), -wanted, atol=1e-5)
    steps = run.explain(text, "distribution", max_new_tokens=1).data["steps"]
    assert [one["token"] for one in steps[0]["tokens"] if one["chosen"]] == [run.vocabulary.token_text(best)]
    assert run.explain(text, "beam-search", beam_size=1, max_new_tokens=1).data["output"] == greedy.text


@pytest.mark.parametrize("name", ["gpt", "sentences", "lines"])
def test_bos_tokens_are_not_tokens_of_the_text(runs, name):
    run = runs[name]
    (side,) = read(run, "Ida", ExplainConfig()).sides
    count = len(run.predictor.bos_ids)
    assert side.tokens == [*run.predictor.bos_ids, *run.vocabulary.encode("Ida").tolist()]
    assert side.text_mask == [False] * count + [True] * 3
    assert [(piece.start, piece.end) for piece in side.spans] == [(0, 0)] * count + [(0, 1), (1, 2), (2, 3)]


def test_minimal_pairs_use_the_same_bos(runs, tmp_path):
    from weft.comparison.minimal_pairs import evaluate_minimal_pairs
    from weft.data.minimal_pair_files import read_suite

    (tmp_path / "pairs.tsv").write_text("good\tbad\nIda finds a letter.\tida finds a letter.\n")
    suite = read_suite([tmp_path / "pairs.tsv"])
    items = evaluate_minimal_pairs(runs["gpt"], suite.pairs)
    good, bad = (line.log_prob for line in runs["gpt"].score(["Ida finds a letter.", "ida finds a letter."]))
    assert items.statistics["correct"].tolist() == [float(good > bad)]


def test_evaluation_uses_the_same_bos(runs, tmp_path):
    (tmp_path / "text.txt").write_text("Ida finds a")
    for name in ("ngram", "lstm", "gpt"):
        run = runs[name]
        (value,) = (one.value for one in run.evaluate(tmp_path / "text.txt") if one.name == "loss")
        assert value == pytest.approx(-run.score("Ida finds a").log_prob / 11, rel=1e-5)


def test_two_bos_tokens_take_two_positions(runs, tmp_path):
    run = runs["sentences"]  # learned positions, 16 of them
    assert (run.model.max_positions, run.predictor.max_tokens) == (16, 15)
    assert len(run.score("a" * 15).tokens) == 15
    with pytest.raises(DataError) as caught:
        run.score("a" * 16)
    assert str(caught.value) == "line 1: 16 tokens exceed the model's limit of 15; shorten it"
    assert len(run.generate("", max_new_tokens=15).token_ids) == 15
    with pytest.raises(UsageError) as refused:
        run.generate("", max_new_tokens=16)
    assert str(refused.value) == (
        "max_new_tokens: 2 prompt tokens and 16 new tokens exceed the model's 16 positions; use at most 15"
    )
    assert list(run.predictor.invalid_prompts(["", "a"], GenerationConfig(max_new_tokens=15))) == [1]


def test_words_are_tokenized_as_at_the_start_of_a_line(tmp_path):
    """No space before the first word, and no newline: that one is not generated."""
    (tmp_path / "text.txt").write_text(tales(200))
    changed = {"model": {"arch": "ngram", "order": 4}, "train": {}, "tokenizer": {"type": "word"}}
    train_here(run_file(tmp_path / "text.txt") | changed, tmp_path / "run")
    run = weft.load(tmp_path / "run")
    assert isinstance(run, Run)
    for options in ({"seed": 1}, {"beam_size": 2}):
        found = run.generate(["", "Ida"], max_new_tokens=5, **options)
        assert found[0].text.split()[0] in NAMES and found[0].text[0].isupper()
        assert found[1].text.startswith(" finds ")


# ---- kept with the run


def test_training_stores_bos_and_notes_if_there_is_none(runs, tmp_path):
    assert json.loads((runs["gpt"].directory.path / "bos.json").read_text()) == {
        "text": ".\n",
        "token_ids": runs["gpt"].vocabulary.encode(".\n").tolist(),
    }
    assert not (runs["lines"].directory.path / "bos.json").exists()
    (tmp_path / "text.txt").write_text("abcd" * 300)
    watcher = SilentCallback()
    values = run_file(tmp_path / "text.txt", train__max_steps=1)
    train_here(values, tmp_path / "run", watcher)
    note = "the training text has few line or sentence ends; scored and generated texts follow <s>"
    assert note in watcher.notes
    run = weft.load(tmp_path / "run")
    assert isinstance(run, Run) and run.predictor.bos_ids == [1]


def test_info_shows_bos(runs, capsys):
    for name, told in (("gpt", r"'.\u{a}'"), ("lines", "'<s>'"), ("sentences", "'. '")):
        assert main(["info", str(runs[name].directory.path)]) == 0
        assert f"Prompt     texts are generated after {told}\n" in capsys.readouterr().out
    assert main(["info", str(runs["sentences"].directory.path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["bos_tokens"] == [".", " "]


@pytest.mark.parametrize(
    "written",
    ['{"text": "\\n", "token_ids": [5]}', '{"text": "\\t", "token_ids": [3]}', '{"text": "\\n"}', "[1]", '{"text": {}}'],
)
def test_a_damaged_file_is_refused(tmp_path, written):
    tokenizer = tokenizer_of("char", tales(10))
    write_bos(tmp_path, "\n", tokenizer)
    assert read_bos(tmp_path, tokenizer) == tokenizer.encode("\n").tolist()
    (tmp_path / "bos.json").write_text(written)
    with pytest.raises(ModelError) as caught:
        read_bos(tmp_path, tokenizer)
    assert str(caught.value) == (
        f"{tmp_path / 'bos.json'}: corrupted: tokens and text do not match; restore it or train the run again"
    )


def test_lines_keep_their_bos_token(tmp_path):
    tokenizer = tokenizer_of("char", tales(10))
    write_bos(tmp_path, "\n", tokenizer)
    running: Any = make_corpus([3, 4])
    assert with_bos(running, tmp_path, tokenizer).bos_ids == (*tokenizer.encode("\n"),)
    lines = running.__class__("a", np.array([3, 2]), np.array([0, 2]), running.cumulative_counts, "")
    assert with_bos(lines, tmp_path, tokenizer) == lines
    assert with_bos(running, Path(tmp_path / "nowhere"), tokenizer).bos_ids == (1,)
