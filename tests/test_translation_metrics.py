"""Translation metrics: comparison with sacrebleu and jiwer, worked examples, and aggregation over batches."""

from __future__ import annotations

import random
import subprocess
import sys
import time
import unicodedata

import jiwer
import numpy as np
import pytest
import sacrebleu
from hypothesis import given, settings
from hypothesis import strategies as st
from sacrebleu.metrics import BLEU, CHRF

from weft import __version__
from weft.errors import DataError
from weft.metrics import lm as language
from weft.metrics.edit_distance import edit_distance
from weft.metrics.items import ItemStatistics, join, resample
from weft.metrics.seq2seq import TRANSLATION, Seq2SeqSetup, seq2seq_items, seq2seq_scores

HOW = Seq2SeqSetup(search="beam:5/alpha:1")
NAMES = ["exact_match", "token_error_rate", "character_error_rate", "bleu", "bleu_lc", "chrf"]


def scores(outputs, references, decoded=HOW):
    return {score.name: score for score in seq2seq_scores(seq2seq_items(outputs, references), decoded)}


def values(outputs, references):
    return {name: score.value for name, score in scores(outputs, references).items()}


def expected(outputs, references):
    """The same scores from sacrebleu and jiwer."""
    return {
        "token_error_rate": 100 * jiwer.wer(references, outputs),
        "character_error_rate": 100 * jiwer.cer(references, outputs),
        "bleu": sacrebleu.corpus_bleu(outputs, [references]).score,
        "bleu_lc": sacrebleu.corpus_bleu(outputs, [references], lowercase=True).score,
        "chrf": sacrebleu.corpus_chrf(outputs, [references]).score,
    }


# ---- edit distance


def by_table(a, b):
    """Edit distance by the Wagner-Fischer table, row by row."""
    row = list(range(len(b) + 1))
    for position, token in enumerate(a, 1):
        corner, row[0] = row[0], position
        for index, other in enumerate(b, 1):
            corner, row[index] = row[index], min(row[index] + 1, row[index - 1] + 1, corner + (token != other))
    return row[-1]


@pytest.mark.parametrize(
    ("a", "b", "edits"),
    [("", "", 0), ("", "abc", 3), ("abc", "", 3), ("kitten", "sitting", 3), ("ab", "ba", 2), ("aaa", "a", 2)],
)
def test_edit_distances_by_hand(a, b, edits):
    assert edit_distance(a, b) == edits


@given(st.lists(st.integers(0, 4), max_size=90), st.lists(st.integers(0, 4), max_size=90))
@settings(max_examples=150, deadline=None)
def test_edit_distance_equals_dynamic_programming_for_any_length(a, b):
    assert edit_distance(a, b) == by_table(a, b)


def test_edit_distances_of_a_thousand_sentences_are_fast():
    rng = random.Random(0)
    outputs, expected = ([rng.choices(range(200), k=30) for _ in range(1000)] for _ in range(2))
    began = time.process_time()
    total = sum(edit_distance(a, b) for a, b in zip(outputs, expected, strict=True))
    assert time.process_time() - began < 0.5
    assert 20_000 < total < 30_000


# ---- scores


def test_scores_by_hand():
    actual = values(["the cat sat down", "a dog ."], ["the cat lay down", "a dog ."])
    assert list(actual) == NAMES
    assert actual["exact_match"] == 50
    assert actual["token_error_rate"] == pytest.approx(100 / 7)
    assert actual["character_error_rate"] == pytest.approx(100 * 2 / 23)  # sat, lay
    # n-gram precisions: 6/7, 3/5, 1/3 and 0/1, which is smoothed to 1/2
    assert actual["bleu"] == pytest.approx(100 * (6 / 7 * 3 / 5 * 1 / 3 * 1 / 2) ** 0.25)


CASES = {
    "one line": (["the cat sat on the mat"], ["the cat sat on a mat"]),
    "one right line": (["the cat sat on the mat"], ["the cat sat on the mat"]),
    "one word": (["cat"], ["cat"]),
    "short": (["a b", "c"], ["a b", "c d"]),
    "three words": (["a b c"], ["a b c"]),
    "case": (["The Cat sat on the MAT today", "Ein Hund"], ["the cat sat on the mat today", "ein Hund"]),
    "nothing right": (["x y z u v"], ["a b c d e"]),
    "unigrams right": (["a b c d e f"], ["f e d c b a"]),
    "brief": (["the cat sat on", "a"], ["the cat sat on the mat and slept", "a dog"]),
    "lengthy": (["the cat sat on the mat and slept"], ["the cat sat on the mat"]),
    "an empty output": (["", "a small house on a hill"], ["a dog runs there", "a small house on the hill"]),
    "empty outputs": (["", ""], ["a dog runs there", "a house"]),
    "an empty reference": (["a dog", "a small house on a hill"], ["", "a small house on the hill"]),
    "both empty": (["", "a b c d e"], ["", "a b c d f"]),
    "spaces": (["  the  cat sat   down now "], ["the cat sat down  now"]),
    "punctuation": (["Hello, world!  It's 3.5 % (about)."], ["Hello world! It's 3,5 % (about)..."]),
    "entities": (["&quot;A&quot; &amp; b &lt; c d e"], ['"A" & b < c d e']),
    "scripts": (
        ["кошка сидит на ковре", "猫はマットの上に座った", "القطة على السجادة"],
        ["кошка сидела на ковре", "猫がマットに座った", "القط على السجاد"],
    ),
    "composed and not": ([unicodedata.normalize("NFD", "die Tür öffnet früh")], ["die Tür öffnet früh"]),
    "capitals that change length": (["İstanbul ẞ ΣΑΣ one two"], ["istanbul ß σας one two"]),
    "beyond the first plane": (["a 😀 𝔘 b c"], ["a 😀 𝔙 b c"]),
    "phones": (["k æ t", "d ɔ ɡ z"], ["k æ t", "d ɒ ɡ"]),
}


@pytest.mark.parametrize(("outputs", "references"), CASES.values(), ids=CASES)
def test_scores_match_sacrebleu_and_jiwer(outputs, references):
    actual = values(outputs, references)
    del actual["exact_match"]
    assert actual == pytest.approx(expected(outputs, references), abs=1e-9)


def noisy(rng, lines, length=12):
    """References with some words dropped, doubled or changed."""
    words = [f"{a}{b}" for a in ("Ka", "lo", "mi", "Ne", "so,") for b in "aeiou."]
    references = [" ".join(rng.choices(words, k=rng.randint(0, length))) for _ in range(lines)]
    swap = {0: "", 1: "Xy", 2: "xy xy"}
    return [" ".join(swap.get(rng.randint(0, 12), word) for word in line.split()) for line in references], references


@pytest.mark.parametrize("seed", range(8))
def test_corpus_scores_match_sacrebleu_and_jiwer(seed):
    outputs, references = noisy(random.Random(seed), [2, 5, 40, 150][seed % 4], length=4 + 3 * seed)
    actual = values(outputs, references)
    assert actual.pop("exact_match") == pytest.approx(
        100 * np.mean([a.split() == b.split() for a, b in zip(outputs, references, strict=True)])
    )
    assert actual == pytest.approx(expected(outputs, references), abs=1e-9)


def test_score_of_a_resample_equals_that_of_its_lines():
    rng = np.random.default_rng(0)
    outputs, references = noisy(random.Random(1), 30)
    items = seq2seq_items(outputs, references)
    again = resample(items.statistics, samples=20, seed=0)
    for sample in range(20):
        drawn = rng.integers(30, size=30)
        reference_scores = expected([outputs[line] for line in drawn], [references[line] for line in drawn])
        assert {
            metric.name: metric.compute(again)[sample] for metric in TRANSLATION if metric.name in reference_scores
        } == pytest.approx(reference_scores, abs=1e-9)


def test_exact_match_ignores_whitespace():
    items = seq2seq_items(["a b ", "a  b", "ab", "", "a"], [" a b", "a\u00a0b", "a b", " ", "A"])
    assert items.statistics["exact"].tolist() == [1, 1, 0, 1, 0]
    assert items.statistics["edits"].tolist() == [0, 0, 2, 0, 1]


def test_without_reference_tokens_there_is_no_error_rate():
    actual = scores(["a", "b c"], ["", " "])
    assert list(actual) == ["exact_match", "bleu", "bleu_lc", "chrf"]
    assert [(score.value, score.low, score.high) for score in actual.values()] == [(0, 0, 0)] * 4


def test_resamples_without_a_reference_token_are_left_out_of_the_interval():
    rate = scores(["a", "b c"], ["", "b d"])["token_error_rate"]
    assert (rate.value, rate.low, rate.high) == (100, 50, 100)


def test_intervals_contain_the_score_and_one_line_has_none():
    for score in scores(*noisy(random.Random(3), 100)).values():
        assert score.low < score.value < score.high
        assert 0.2 < score.high - score.low < 25
    for score in scores(["a b c d"], ["a b c e"]).values():
        assert (score.low, score.high) == (None, None)


def test_intervals_depend_on_the_seed_in_the_signature():
    outputs, references = noisy(random.Random(3), 50)
    first, same = scores(outputs, references), scores(outputs, references)
    other = scores(outputs, references, HOW._replace(seed=1))
    assert first == same
    assert first["bleu"].value == other["bleu"].value
    assert first["bleu"].low != other["bleu"].low


def test_signatures_name_every_choice():
    actual = scores(["a b", "c"], ["a b", "d"], Seq2SeqSetup(search="greedy", samples=200, seed=7))
    ours = f"weft:{__version__}|search:greedy|unit:line|lines:2|resamples:200|seed:7|interval:95%"
    version = sacrebleu.__version__
    assert {name: score.signature for name, score in actual.items()} == {
        "exact_match": f"tok:space|{ours}",
        "token_error_rate": f"tok:space|{ours}",
        "character_error_rate": f"tok:char|{ours}",
        "bleu": f"nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:{version}|{ours}",
        "bleu_lc": f"nrefs:1|case:lc|eff:no|tok:13a|smooth:exp|version:{version}|{ours}",
        "chrf": f"nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:{version}|{ours}",
    }
    for name, metric in (("bleu", BLEU()), ("bleu_lc", BLEU(lowercase=True)), ("chrf", CHRF())):
        metric.corpus_score(["a b", "c"], [["a b", "d"]])
        assert actual[name].signature == f"{metric.get_signature()}|{ours}"


def test_statistics_of_parts_join_to_those_of_the_corpus():
    outputs, references = noisy(random.Random(5), 40)
    full = seq2seq_items(outputs, references)

    def part(low, high):
        piece = seq2seq_items(outputs[low:high], references[low:high])
        return ItemStatistics(piece.keys + low, piece.statistics, piece.outputs)

    joined = join([part(25, 40), part(0, 0), part(0, 25)])
    assert joined.outputs == outputs
    assert seq2seq_scores(joined, HOW) == seq2seq_scores(full, HOW)
    assert {name: array.shape for name, array in full.statistics.items()} == {
        "lines": (40,),
        "exact": (40,),
        "edits": (40,),
        "reference_tokens": (40,),
        "character_edits": (40,),
        "reference_characters": (40,),
        "bleu": (40, 10),
        "bleu_lc": (40, 10),
        "chrf": (40, 18),
    }


def test_empty_data_is_rejected():
    for empty in (seq2seq_items([], []), join([])):
        with pytest.raises(DataError) as caught:
            seq2seq_scores(empty, HOW)
        assert str(caught.value) == "evaluate: no lines to evaluate"


def test_outputs_and_references_must_have_equal_length():
    with pytest.raises(ValueError) as caught:
        seq2seq_items(["a", "b"], ["a"])
    assert str(caught.value) == "seq2seq_items: 2 outputs, but 1 references"


def test_every_metric_has_a_direction():
    directions = {metric.name: metric.better for metric in TRANSLATION}
    better, worse = values(["a b c d e"], ["a b c d e"]), values(["a b x d f"], ["a b c d e"])
    for name in NAMES:
        assert (better[name] > worse[name]) == (directions[name] == "higher")
    assert {metric.better for metric in language.LANGUAGE} == {"lower"}


def test_scoring_a_thousand_lines_is_fast():
    outputs, references = noisy(random.Random(0), 1000, length=40)
    items = seq2seq_items(outputs, references)
    began = time.process_time()
    actual = seq2seq_scores(items, HOW)
    assert time.process_time() - began < 1
    assert len(actual) == 6


def test_sacrebleu_is_imported_lazily_and_signals_are_unchanged():
    code = (
        "import signal, sys; before = signal.getsignal(signal.SIGPIPE); import weft.metrics.seq2seq as t;"
        "assert 'sacrebleu' not in sys.modules;"
        "t.seq2seq_scores(t.seq2seq_items(['a'], ['b']), t.Seq2SeqSetup('greedy'));"
        "assert 'sacrebleu' in sys.modules; assert signal.getsignal(signal.SIGPIPE) == before"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
