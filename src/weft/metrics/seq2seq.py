"""Scores of outputs against references: exact match, error rates of tokens and characters, BLEU and chrF; all in percent.

Tokens of exact match and edit rate are what white space separates: words, or phones. An output is exact if it has the tokens of
its reference, in their order. BLEU and chrF are sacrebleu's: its tokenizers and its definitions, here as functions of sums.

Of several references, BLEU counts the n-grams of all and the length nearest to the output's, chrF takes the one with the
highest F: both as sacrebleu does. The others take the nearest: the one with the fewest edits, the longest of equals.

Shapes: N lines, R resamples.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from weft import __version__
from weft.errors import DataError
from weft.metrics.edit_distance import edit_distance
from weft.metrics.items import Array, ItemStatistics, Score, Sums
from weft.metrics.lm import LANGUAGE_VALIDATION
from weft.metrics.metric import Metric, scores

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric as SacreMetric

WORDS, CHARACTERS = 4, 6  # the longest n-grams of BLEU and of chrF
BETA = 2  # how much more recall counts than precision in chrF


class Seq2SeqSetup(NamedTuple):
    """How the outputs were made, scored and are resampled, for the signature."""

    search: str  # "greedy", "beam:5/alpha:1"
    samples: int = 1000
    seed: int = 0
    tokenize: str = "13a"  # of BLEU
    references: int | None = 1  # of each line; None: not the same number of all


def scored(references: Sequence[Sequence[str]], *, search: str, tokenize: str) -> Seq2SeqSetup:
    """How outputs that were searched for so are scored against these references."""
    counts = set(map(len, references))
    return Seq2SeqSetup(search, tokenize=tokenize, references=counts.pop() if len(counts) == 1 else None)


Lines = Sequence[Sequence[str]]  # the references of each line


def _bleu_statistics(outputs: Sequence[str], references: Lines, *, lowercase: bool, tokenize: str) -> list[list[int]]:
    """Of each line, n-grams that are right (4), n-grams (4), length, length of the reference."""
    from sacrebleu import BLEU  # on first use: it takes longer to import than `weft --help` may take

    # its counts are wanted, not its score of a line, for which it recommends this order, aloud
    metric = BLEU(lowercase=lowercase, effective_order=True, tokenize=tokenize)
    lines = [metric.sentence_score(output, list(some)) for output, some in zip(outputs, references, strict=True)]
    return [[*line.counts, *line.totals, line.sys_len, line.ref_len] for line in lines]


Ngrams = list[Counter[str]]  # of each order


def _character_ngrams(text: str) -> Ngrams:
    letters = "".join(text.split())
    return [Counter([letters[start : start + n] for start in range(len(letters) - n + 1)]) for n in range(1, CHARACTERS + 1)]


def _shared_ngrams(output: Ngrams, reference: Ngrams) -> list[int]:
    """For each order n-grams of the output, of the reference, and of both; an order that the reference lacks counts nowhere."""
    pairs = zip(output, reference, strict=True)
    return [
        count
        for predicted, gold in pairs
        for count in (predicted.total() if gold else 0, gold.total(), (predicted & gold).total())
    ]


def _f_score(statistics: Sequence[int]) -> float:
    """The chrF of one line, in sacrebleu's order of operations: of two references that are equally good, both take the same."""
    precision = recall = 0.0
    orders = 0
    for predicted, gold, both in zip(statistics[::3], statistics[1::3], statistics[2::3], strict=True):
        if predicted and gold:
            precision, recall, orders = precision + both / predicted, recall + both / gold, orders + 1
    if not precision + recall:
        return 0.0
    precision, recall = precision / orders, recall / orders
    return (1 + BETA**2) * precision * recall / (BETA**2 * precision + recall)


def _chrf_statistics(output: str, references: Sequence[str]) -> list[int]:
    """Those of the reference that gives the highest score, of equals the first."""
    predicted = _character_ngrams(output)
    return max((_shared_ngrams(predicted, _character_ngrams(one)) for one in references), key=_f_score)


def _nearest(predicted: Sequence[str], references: Sequence[Sequence[str]]) -> tuple[int, int]:
    """Edits to the reference that takes the fewest, and its length; of equals the longest."""
    edits, less_length = min((edit_distance(predicted, gold), -len(gold)) for gold in references)
    return edits, -less_length


def seq2seq_items(
    outputs: Sequence[str], references: Sequence[str | Sequence[str]], *, tokenize: str = "13a"
) -> ItemStatistics:
    """The statistics of each line, by its number: lines, exact, edits, reference_tokens, character_edits,
    reference_characters (N,), bleu and bleu_lc (N, 10), chrf (N, 18); bleu_lc is of lower-cased text. A line has one reference
    or several."""
    if len(outputs) != len(references):
        raise ValueError(f"translation_items: {len(outputs)} outputs, but {len(references)} references")
    gold = [[some] if isinstance(some, str) else list(some) for some in references]
    pairs = list(zip(outputs, gold, strict=True))
    edits = np.array([_nearest(a.split(), [one.split() for one in some]) for a, some in pairs], np.float64).reshape(-1, 2)
    letters = np.array([_nearest(a.strip(), [one.strip() for one in some]) for a, some in pairs], np.float64).reshape(-1, 2)
    tables = {
        "bleu": (_bleu_statistics(outputs, gold, lowercase=False, tokenize=tokenize), 2 * WORDS + 2),
        "bleu_lc": (_bleu_statistics(outputs, gold, lowercase=True, tokenize=tokenize), 2 * WORDS + 2),
        "chrf": ([_chrf_statistics(output, some) for output, some in pairs], 3 * CHARACTERS),
    }
    statistics = {
        "lines": np.ones(len(edits)),
        "exact": (edits[:, 0] == 0).astype(np.float64),
        "edits": edits[:, 0],
        "reference_tokens": edits[:, 1],
        "character_edits": letters[:, 0],
        "reference_characters": letters[:, 1],
        **{name: np.array(table, np.float64).reshape(-1, width) for name, (table, width) in tables.items()},
    }
    return ItemStatistics(np.arange(len(edits)), statistics, list(outputs))


def _ratio(part: Array, whole: Array, *, empty: float) -> Array:
    quotient: Array = np.divide(part, whole, out=np.full_like(whole, empty), where=whole > 0)
    return quotient


def _exact_match(totals: Sums) -> Array:
    return 100 * _ratio(totals["exact"], totals["lines"], empty=np.nan)


def _token_error_rate(totals: Sums) -> Array:
    # a resample may have drawn empty references only: its rate is not a number, and left out
    return 100 * _ratio(totals["edits"], totals["reference_tokens"], empty=np.nan)


def _character_error_rate(totals: Sums) -> Array:
    return 100 * _ratio(totals["character_edits"], totals["reference_characters"], empty=np.nan)


def _bleu(table: Array) -> Array:
    """From sums (R, 10) to (R,): the geometric mean of precisions, times the penalty for brevity (Papineni et al. 2002)."""
    right, count, length, reference = table[:, :WORDS], table[:, WORDS:-2], table[:, -2], table[:, -1]
    missed = right == 0
    # of orders without one right n-gram, the first counts half of one, the next a quarter, ...
    counted = np.where(missed, 0.5 ** missed.cumsum(1), right)
    precision = _ratio(counted, count, empty=0.0)
    possible = (count > 0).all(1) & ~missed.all(1)
    logs = np.log(precision, out=np.zeros_like(precision), where=possible[:, None]).mean(1)
    brevity = np.minimum(0.0, 1 - _ratio(reference, length, empty=0.0))
    return np.where(possible, 100 * np.exp(logs + brevity), 0.0)


def _chrf(table: Array) -> Array:
    """From sums (R, 18) to (R,): the F of precision and recall, each the mean over all orders that occur (Popović 2015)."""
    predicted, gold, both = np.moveaxis(table.reshape(-1, CHARACTERS, 3), 2, 0)
    occurs = (predicted > 0) & (gold > 0)
    orders = occurs.sum(1).astype(np.float64)
    precision, recall = (
        _ratio((_ratio(both, count, empty=0.0) * occurs).sum(1), orders, empty=0.0) for count in (predicted, gold)
    )
    return 100 * _ratio((1 + BETA**2) * precision * recall, BETA**2 * precision + recall, empty=0.0)


_EXACT_MATCH = Metric("exact_match", _exact_match, "higher", percent=True)
_EDIT_RATE = Metric("token_error_rate", _token_error_rate, "lower", percent=True)
# of one line alone BLEU says the wrong thing: a perfect one of three words has 0
_BLEU = Metric("bleu", lambda totals: _bleu(totals["bleu"]), "higher", single="chrf", percent=True)
_BLEU_LC = _BLEU._replace(name="bleu_lc", of=lambda totals: _bleu(totals["bleu_lc"]))
_CHRF = Metric("chrf", lambda totals: _chrf(totals["chrf"]), "higher", percent=True)

TRANSLATION = (
    _EXACT_MATCH,
    _EDIT_RATE,
    Metric("character_error_rate", _character_error_rate, "lower"),
    _BLEU,
    _BLEU_LC,
    _CHRF,
)
TRANSLATION_VALIDATION = (*LANGUAGE_VALIDATION, _BLEU, _CHRF, _EXACT_MATCH, _EDIT_RATE)


def signatures(setup: Seq2SeqSetup, *, lines: int) -> dict[str, str]:
    """Every choice behind each score, named; that of a score which is sacrebleu's begins with sacrebleu's own."""
    from sacrebleu import BLEU, CHRF

    ours = (
        f"weft:{__version__}|search:{setup.search}|unit:line|lines:{lines}"
        f"|resamples:{setup.samples}|seed:{setup.seed}|interval:95%"
    )
    tokenize, multilabel = setup.tokenize, setup.references
    theirs: dict[str, SacreMetric] = {
        "bleu": BLEU(tokenize=tokenize),
        "bleu_lc": BLEU(lowercase=True, tokenize=tokenize),
        "chrf": CHRF(),
    }
    for metric in theirs.values():
        metric.num_refs = -1 if multilabel is None else multilabel  # what it finds in references, -1 where their number varies
    counted = "" if multilabel == 1 else f"nrefs:{'var' if multilabel is None else multilabel}|"
    units = {"exact_match": "space", "token_error_rate": "space", "character_error_rate": "char"}
    tokens = {name: f"{counted}tok:{unit}|{ours}" for name, unit in units.items()}
    return {**tokens, **{name: f"{metric.get_signature()}|{ours}" for name, metric in theirs.items()}}


def seq2seq_scores(items: ItemStatistics, setup: Seq2SeqSetup) -> list[Score]:
    """Every score with its interval; the edit rate only where a reference has a token."""
    lines = len(items.keys)
    if not lines:
        raise DataError("evaluate", "no lines to evaluate")
    return scores(items, TRANSLATION, signatures(setup, lines=lines), samples=setup.samples, seed=setup.seed)
