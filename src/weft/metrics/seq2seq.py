"""Metrics of outputs against references: exact match, token and character error rate, BLEU and chrF; all in percent.

Exact match and token error rate split text at whitespace, into words or phones. An output is exact if its tokens equal those of
its reference. BLEU and chrF use the tokenizers and definitions of sacrebleu, as functions of summed statistics.

With several references, BLEU clips n-gram counts by all of them and uses the length closest to the output's, and chrF uses the
reference with the highest F-score, both as in sacrebleu. The other metrics use the reference with the fewest edits, and of
several such references the longest.

Shapes: N lines, R resamples.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from weft import __version__
from weft.errors import DataError
from weft.metrics.classification import ratio
from weft.metrics.edit_distance import edit_distance
from weft.metrics.items import Array, ItemStatistics, Score, Sums
from weft.metrics.lm import LANGUAGE_VALIDATION
from weft.metrics.metric import Metric, scores

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric as SacreMetric

BLEU_ORDER, CHRF_ORDER = 4, 6  # maximum n-gram length
BETA = 2  # weight of recall in chrF, relative to precision


class Seq2SeqSetup(NamedTuple):
    """Details of the evaluation, for the signature."""

    search: str  # "greedy", "beam:5/alpha:1"
    samples: int = 1000
    seed: int = 0
    tokenize: str = "13a"  # BLEU tokenizer
    references: int | None = 1  # number of references per line; None if it varies


def seq2seq_setup(references: Sequence[Sequence[str]], *, search: str, tokenize: str) -> Seq2SeqSetup:
    """The setup for these references of each line."""
    counts = set(map(len, references))
    return Seq2SeqSetup(search, tokenize=tokenize, references=counts.pop() if len(counts) == 1 else None)


def _bleu_statistics(
    outputs: Sequence[str], references: Sequence[Sequence[str]], *, lowercase: bool, tokenize: str
) -> list[list[int]]:
    """For each line: number of matching n-grams (4), of n-grams (4), output length, reference length."""
    from sacrebleu import BLEU  # slow to import, so only on first use

    # effective_order only silences a warning about sentence scores: the counts do not depend on it
    metric = BLEU(lowercase=lowercase, effective_order=True, tokenize=tokenize)
    scores = [metric.sentence_score(output, list(texts)) for output, texts in zip(outputs, references, strict=True)]
    return [[*score.counts, *score.totals, score.sys_len, score.ref_len] for score in scores]


Ngrams = list[Counter[str]]  # one counter per order


def _character_ngrams(text: str) -> Ngrams:
    chars = "".join(text.split())
    return [Counter([chars[start : start + n] for start in range(len(chars) - n + 1)]) for n in range(1, CHRF_ORDER + 1)]


def _match_ngrams(output: Ngrams, reference: Ngrams) -> list[int]:
    """For each order: number of n-grams in the output, in the reference, and in both; orders above the reference length are
    not counted for the output either."""
    return [
        count
        for output_ngrams, reference_ngrams in zip(output, reference, strict=True)
        for count in (
            output_ngrams.total() if reference_ngrams else 0,
            reference_ngrams.total(),
            (output_ngrams & reference_ngrams).total(),
        )
    ]


def _f_score(statistics: Sequence[int]) -> float:
    """chrF of one line. The order of operations is sacrebleu's, so that ties between references are resolved equally."""
    precision = recall = 0.0
    orders = 0
    for num_output, num_reference, num_matching in zip(statistics[::3], statistics[1::3], statistics[2::3], strict=True):
        if num_output and num_reference:
            precision, recall, orders = precision + num_matching / num_output, recall + num_matching / num_reference, orders + 1
    if not precision + recall:
        return 0.0
    precision, recall = precision / orders, recall / orders
    return (1 + BETA**2) * precision * recall / (BETA**2 * precision + recall)


def _chrf_statistics(output: str, references: Sequence[str]) -> list[int]:
    """Statistics against the reference with the highest score, the first of several."""
    ngrams = _character_ngrams(output)
    return max((_match_ngrams(ngrams, _character_ngrams(reference)) for reference in references), key=_f_score)


def _closest(output: Sequence[str], references: Sequence[Sequence[str]]) -> tuple[int, int]:
    """Edit distance to the closest reference, the longest of several, and its length."""
    edits, negative_length = min((edit_distance(output, reference), -len(reference)) for reference in references)
    return edits, -negative_length


def seq2seq_items(
    outputs: Sequence[str], references: Sequence[str | Sequence[str]], *, tokenize: str = "13a"
) -> ItemStatistics:
    """Statistics of lines: lines, exact, edits, reference_tokens, character_edits, reference_characters (N,), bleu and bleu_lc
    (N, 10), the latter for lowercased text, and chrf (N, 18). Each line has one reference or a sequence of them."""
    if len(outputs) != len(references):
        raise ValueError(f"seq2seq_items: {len(outputs)} outputs, but {len(references)} references")
    reference_lists = [[texts] if isinstance(texts, str) else list(texts) for texts in references]
    pairs = list(zip(outputs, reference_lists, strict=True))
    token_edits = [_closest(output.split(), [text.split() for text in texts]) for output, texts in pairs]
    char_edits = [_closest(output.strip(), [text.strip() for text in texts]) for output, texts in pairs]
    edits, reference_tokens = np.array(token_edits, np.float64).reshape(-1, 2).T
    character_edits, reference_characters = np.array(char_edits, np.float64).reshape(-1, 2).T
    tables = {
        "bleu": (_bleu_statistics(outputs, reference_lists, lowercase=False, tokenize=tokenize), 2 * BLEU_ORDER + 2),
        "bleu_lc": (_bleu_statistics(outputs, reference_lists, lowercase=True, tokenize=tokenize), 2 * BLEU_ORDER + 2),
        "chrf": ([_chrf_statistics(output, texts) for output, texts in pairs], 3 * CHRF_ORDER),
    }
    statistics = {
        "lines": np.ones(len(outputs)),
        "exact": (edits == 0).astype(np.float64),
        "edits": edits,
        "reference_tokens": reference_tokens,
        "character_edits": character_edits,
        "reference_characters": reference_characters,
        **{name: np.array(table, np.float64).reshape(-1, width) for name, (table, width) in tables.items()},
    }
    return ItemStatistics(np.arange(len(outputs)), statistics, list(outputs))


def _exact_match(totals: Sums) -> Array:
    return 100 * ratio(totals["exact"], totals["lines"], empty=np.nan)


def _token_error_rate(totals: Sums) -> Array:
    # a resample may have only empty references: its value is NaN, and the interval ignores it
    return 100 * ratio(totals["edits"], totals["reference_tokens"], empty=np.nan)


def _character_error_rate(totals: Sums) -> Array:
    return 100 * ratio(totals["character_edits"], totals["reference_characters"], empty=np.nan)


def _bleu(table: Array) -> Array:
    """BLEU (R,) from sums (R, 10): geometric mean of the n-gram precisions times the brevity penalty (Papineni et al. 2002)."""
    matching, count, length, reference_length = table[:, :BLEU_ORDER], table[:, BLEU_ORDER:-2], table[:, -2], table[:, -1]
    is_zero = matching == 0
    # "exp" smoothing: the first order without matches counts 1/2 match, the next 1/4, ...
    smoothed = np.where(is_zero, 0.5 ** is_zero.cumsum(1), matching)
    precision = ratio(smoothed, count)
    is_defined = (count > 0).all(1) & ~is_zero.all(1)
    log_precision = np.log(precision, out=np.zeros_like(precision), where=is_defined[:, None]).mean(1)
    log_brevity_penalty = np.minimum(0.0, 1 - ratio(reference_length, length))
    return np.where(is_defined, 100 * np.exp(log_precision + log_brevity_penalty), 0.0)


def _chrf(table: Array) -> Array:
    """chrF (R,) from sums (R, 18): F-score of the precision and recall averaged over n-gram orders (Popović 2015)."""
    num_output, num_reference, num_matching = np.moveaxis(table.reshape(-1, CHRF_ORDER, 3), 2, 0)
    is_counted = (num_output > 0) & (num_reference > 0)
    orders = is_counted.sum(1).astype(np.float64)
    precision, recall = (
        ratio((ratio(num_matching, count) * is_counted).sum(1), orders) for count in (num_output, num_reference)
    )
    return 100 * ratio((1 + BETA**2) * precision * recall, BETA**2 * precision + recall)


_EXACT_MATCH = Metric("exact_match", _exact_match, "higher", percent=True)
_TOKEN_ERROR_RATE = Metric("token_error_rate", _token_error_rate, "lower", percent=True)
# BLEU of a single line is misleading: a perfect output of three words has BLEU 0.
_BLEU = Metric("bleu", lambda totals: _bleu(totals["bleu"]), "higher", item_metric="chrf", percent=True)
_BLEU_LC = _BLEU._replace(name="bleu_lc", compute=lambda totals: _bleu(totals["bleu_lc"]))
_CHRF = Metric("chrf", lambda totals: _chrf(totals["chrf"]), "higher", percent=True)

TRANSLATION = (
    _EXACT_MATCH,
    _TOKEN_ERROR_RATE,
    Metric("character_error_rate", _character_error_rate, "lower"),
    _BLEU,
    _BLEU_LC,
    _CHRF,
)
TRANSLATION_VALIDATION = (*LANGUAGE_VALIDATION, _BLEU, _CHRF, _EXACT_MATCH, _TOKEN_ERROR_RATE)


def signatures(setup: Seq2SeqSetup, *, lines: int) -> dict[str, str]:
    """Signature of each metric, everything that it depends on. Those of BLEU and chrF start with sacrebleu's signature."""
    from sacrebleu import BLEU, CHRF

    suffix = (
        f"weft:{__version__}|search:{setup.search}|unit:line|lines:{lines}"
        f"|resamples:{setup.samples}|seed:{setup.seed}|interval:95%"
    )
    sacrebleu_metrics: dict[str, SacreMetric] = {
        "bleu": BLEU(tokenize=setup.tokenize),
        "bleu_lc": BLEU(lowercase=True, tokenize=setup.tokenize),
        "chrf": CHRF(),
    }
    for metric in sacrebleu_metrics.values():
        metric.num_refs = -1 if setup.references is None else setup.references  # as sacrebleu sets it; -1 if it varies
    prefix = "" if setup.references == 1 else f"nrefs:{'var' if setup.references is None else setup.references}|"
    units = {"exact_match": "space", "token_error_rate": "space", "character_error_rate": "char"}
    return {
        **{name: f"{prefix}tok:{unit}|{suffix}" for name, unit in units.items()},
        **{name: f"{metric.get_signature()}|{suffix}" for name, metric in sacrebleu_metrics.items()},
    }


def seq2seq_scores(items: ItemStatistics, setup: Seq2SeqSetup) -> list[Score]:
    """All scores with their confidence intervals; error rates only if the references are not all empty."""
    lines = len(items.keys)
    if not lines:
        raise DataError("evaluate", "no lines to evaluate")
    return scores(items, TRANSLATION, signatures(setup, lines=lines), samples=setup.samples, seed=setup.seed)
