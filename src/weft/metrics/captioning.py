"""Metrics of captions against several references: BLEU-1 to BLEU-4, CIDEr and CIDEr-D, exact match, word F1, and the word error
rate, for texts that are spoken in a clip.

BLEU, CIDEr and word F1 compare words in lowercase without punctuation around them, close to the evaluation of COCO captions
(Chen et al. 2015); words are not stemmed. An output is exact if its tokens, split at whitespace, equal those of a reference.

BLEU is that of the corpus (Papineni et al. 2002), without smoothing, with the reference length closest to the output's. CIDEr
(Vedantam et al. 2015) weights n-grams by their inverse document frequency; a document is all references of one item, and the
documents are those of the evaluated corpus. Bootstrap resampling therefore changes the items, not the weights.

Shapes: N items, R resamples.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from weft import __version__
from weft.errors import DataError
from weft.metrics.classification import ratio
from weft.metrics.items import Array, Function, ItemStatistics, Score, Sums
from weft.metrics.lm import LANGUAGE_VALIDATION
from weft.metrics.metric import Metric, scores
from weft.metrics.metric import values as metric_values
from weft.metrics.speech import KINDS, WER, speech_items

ORDER = 4  # maximum n-gram length
SIGMA = 6.0  # of the length penalty of CIDEr-D
PUNCTUATION = "\"'`.,:;?!()[]{}-\u2010\u2013\u2014\u2018\u2019\u201c\u201d\u2026"  # around words; # and * may be words

Ngrams = Counter[tuple[str, ...]]
Weights = dict[tuple[str, ...], float]


class CaptionSetup(NamedTuple):
    """Details of the evaluation, for the signature."""

    search: str  # "greedy", "beam:5/alpha:1"
    samples: int = 1000
    seed: int = 0
    references: int | None = 1  # number of references per item; None if it varies


def caption_words(text: str) -> list[str]:
    """The words that are compared."""
    return [word for token in text.lower().split() if (word := token.strip(PUNCTUATION))]


def _ngrams(words: Sequence[str], n: int) -> Ngrams:
    return Counter(tuple(words[start : start + n]) for start in range(len(words) - n + 1))


def _bleu_statistics(output: Sequence[str], references: Sequence[Sequence[str]]) -> list[int]:
    """Number of matching n-grams (4), of n-grams (4), output length, and the closest reference length, the shorter of two."""
    matching, count = [], []
    for n in range(1, ORDER + 1):
        ngrams, clip = _ngrams(output, n), Ngrams()
        for reference in references:
            clip |= _ngrams(reference, n)
        matching.append((ngrams & clip).total())
        count.append(ngrams.total())
    closest = min((abs(len(reference) - len(output)), len(reference)) for reference in references)[1]
    return [*matching, *count, len(output), closest]


class _Cider:
    """CIDEr and CIDEr-D with the document frequencies of a corpus of references (items of several tokenized texts)."""

    def __init__(self, corpus: Iterable[Sequence[Sequence[str]]]) -> None:
        self.frequency, self.num_documents = Ngrams(), 0
        for references in corpus:
            self.frequency.update({ngram for words in references for n in range(1, ORDER + 1) for ngram in _ngrams(words, n)})
            self.num_documents += 1

    def vector(self, words: Sequence[str], n: int) -> Weights:
        """TF-IDF by n-gram. The counts are not divided by their sum: the cosine does not change."""
        log_documents, ngrams = math.log(max(1, self.num_documents)), _ngrams(words, n)
        return {ngram: count * (log_documents - math.log(max(1, self.frequency[ngram]))) for ngram, count in ngrams.items()}

    def score(self, output: Sequence[str], references: Sequence[Sequence[str]]) -> tuple[float, float]:
        """CIDEr from 0 to 1 and CIDEr-D from 0 to 10."""
        cider = cider_d = 0.0
        for n in range(1, ORDER + 1):
            vector = self.vector(output, n)
            for reference in references:
                cosine, clipped = _cosines(vector, self.vector(reference, n))
                cider += cosine
                cider_d += clipped * math.exp(-((len(output) - len(reference)) ** 2) / (2 * SIGMA**2))
        pairs = ORDER * len(references)
        return cider / pairs, 10 * cider_d / pairs


def _cosines(output: Weights, reference: Weights) -> tuple[float, float]:
    """Cosine of two vectors, and the same with the weights of the output clipped at those of the reference; 0 for zeros."""
    norms = math.hypot(*output.values()) * math.hypot(*reference.values())
    if not norms:
        return 0.0, 0.0
    shared = [(output[ngram], reference[ngram]) for ngram in output.keys() & reference.keys()]
    return math.fsum(x * y for x, y in shared) / norms, math.fsum(min(x, y) * y for x, y in shared) / norms


def _word_f1(output: Sequence[str], reference: Sequence[str]) -> float:
    """F1 of two bags of words, from 0 to 1; 1 if both are empty."""
    if not output and not reference:
        return 1.0
    return 2 * (Counter(output) & Counter(reference)).total() / (len(output) + len(reference))


def caption_items(outputs: Sequence[str], references: Sequence[str | Sequence[str]]) -> ItemStatistics:
    """Statistics of items: captions, exact, word_f1, cider, cider_d (N,), ngrams (N, 10), and those of the word error rate.

    Each item has one reference or a sequence of them. All items of a corpus are needed at once, for the document frequencies.
    """
    if len(outputs) != len(references):
        raise ValueError(f"caption_items: {len(outputs)} outputs, but {len(references)} references")
    texts = [[text] if isinstance(text, str) else list(text) for text in references]
    output_words = [caption_words(output) for output in outputs]
    reference_words = [[caption_words(text) for text in item] for item in texts]
    cider = _Cider(reference_words)
    pairs = list(zip(output_words, reference_words, strict=True))
    is_exact = [output.split() in [text.split() for text in item] for output, item in zip(outputs, texts, strict=True)]
    cider_scores = np.array([cider.score(*pair) for pair in pairs], np.float64).reshape(-1, 2)
    errors = speech_items(outputs, texts).statistics
    statistics = {
        **{name: errors[name] for name in ("words", *KINDS)},
        "captions": np.ones(len(outputs)),
        "exact": np.array(is_exact, np.float64),
        "word_f1": np.array([max(_word_f1(words, reference) for reference in item) for words, item in pairs], np.float64),
        "cider": cider_scores[:, 0],
        "cider_d": cider_scores[:, 1],
        "ngrams": np.array([_bleu_statistics(*pair) for pair in pairs], np.float64).reshape(-1, 2 * ORDER + 2),
    }
    return ItemStatistics(np.arange(len(outputs)), statistics, list(outputs))


def _bleu(order: int) -> Function:
    """BLEU (R,) with n-grams up to `order`, from sums (R, 10)."""

    def compute(totals: Sums) -> Array:
        table = totals["ngrams"]
        matching, count = table[:, :order], table[:, ORDER : ORDER + order]
        length, reference_length = table[:, -2], table[:, -1]
        is_defined: Array = matching.min(1) > 0
        precision = np.where(is_defined[:, None], ratio(matching, count), 1.0)
        log_brevity_penalty = np.minimum(0.0, 1 - ratio(reference_length, length))
        return np.where(is_defined, 100 * np.exp(np.log(precision).mean(1) + log_brevity_penalty), 0.0)

    return compute


def _mean(name: str, scale: float = 1.0) -> Function:
    def compute(totals: Sums) -> Array:
        return scale * ratio(totals[name], totals["captions"], empty=np.nan)

    return compute


_CIDER_D = Metric("cider_d", _mean("cider_d"), "higher")
# BLEU of a single caption is 0 if it has no matching sequence of `order` words
_BLEU = [Metric(f"bleu_{n}", _bleu(n), "higher", item_metric="cider_d", percent=True) for n in range(1, ORDER + 1)]
_EXACT_MATCH = Metric("exact_match", _mean("exact", 100), "higher", percent=True)
_WORD_F1 = Metric("word_f1", _mean("word_f1", 100), "higher", percent=True)

CAPTIONING = (_CIDER_D, Metric("cider", _mean("cider"), "higher"), *reversed(_BLEU), _WORD_F1, _EXACT_MATCH, WER)
_VALIDATION = (_CIDER_D, _BLEU[-1], _WORD_F1, _EXACT_MATCH, WER)
CAPTIONING_VALIDATION = (*LANGUAGE_VALIDATION, *_VALIDATION)


def validation_values(outputs: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, float]:
    """The scores of outputs during training."""
    return metric_values(caption_items(outputs, references), _VALIDATION)


def caption_setup(references: Sequence[Sequence[str]], *, search: str) -> CaptionSetup:
    """The setup for these references of each item."""
    counts = set(map(len, references))
    return CaptionSetup(search, references=counts.pop() if len(counts) == 1 else None)


def caption_signatures(setup: CaptionSetup, *, captions: int) -> dict[str, str]:
    """Signature of each metric: everything that it depends on."""
    references = "var" if setup.references is None else setup.references
    suffix = (
        f"weft:{__version__}|search:{setup.search}|unit:caption|captions:{captions}"
        f"|resamples:{setup.samples}|seed:{setup.seed}|interval:95%"
    )
    words = "case:lc|tok:words"
    prefixes = {
        **{f"bleu_{n}": f"{words}|order:{n}|smooth:none|" for n in range(1, ORDER + 1)},
        "cider": f"{words}|df:references|stem:no|",
        "cider_d": f"{words}|df:references|stem:no|sigma:{SIGMA:g}|",
        "word_f1": f"{words}|",
        "exact_match": "case:mixed|tok:space|",
        "wer": "case:mixed|tok:space|",
    }
    return {name: f"nrefs:{references}|{prefix}{suffix}" for name, prefix in prefixes.items()}


def caption_scores(items: ItemStatistics, setup: CaptionSetup) -> list[Score]:
    """All scores with their confidence intervals."""
    captions = len(items.keys)
    if not captions:
        raise DataError("evaluate", "no captions to evaluate")
    signatures = caption_signatures(setup, captions=captions)
    return scores(items, CAPTIONING, signatures, samples=setup.samples, seed=setup.seed)
