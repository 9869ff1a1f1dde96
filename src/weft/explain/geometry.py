"""Geometry of contextual word vectors by layer (Ethayarajh 2019): similarity of any two words, of one word in several
contexts, and of the words of a sentence; and a projection of some words.

Let U be the sum of the n unit vectors of all words, and U(s) the sum of the n(s) unit vectors of sentence s. The mean cosine of
all pairs of words from different sentences is (|U|^2 - sum |U(s)|^2) / (n^2 - sum n(s)^2), which is exact and requires only
sums. Shapes: N words, D vector size, L stages of a stack.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from weft.errors import UsageError
from weft.explain import guides
from weft.explain.explained_variance import VectorStore, split_passes
from weft.explain.explanation import Explanation, Figure, align_columns
from weft.explain.vectors import MAX_WORDS, Example, Sample, SequenceStages, sample, sequence_stages, word_vectors
from weft.plots.lines import Axis, Series, lines
from weft.plots.scatter import Points, scatter
from weft.runs.eval_data import Files
from weft.runs.run import AnyRun
from weft.text.reading import pluralize

MIN_OCCURRENCES = 5  # sentences that a word occurs in, to be compared with itself
MAX_TYPES = 1000  # words compared with themselves, most frequent first
NUM_PROJECTED_WORDS = 6  # words in the projection by default
MAX_POINTS_PER_WORD = 60  # occurrences of each word in the projection
CONTEXT_CHARS = 30  # characters on either side of a word in tooltips
CONTEXT_WORDS = 4  # the same for outputs
NAN = float("nan")
ProgressCallback = Callable[[int, int], None]


# ---- scores


class GeometryScores(NamedTuple):
    """Mean cosines (-1 to 1) and fractions of the variance in one stage; NaN if there is nothing to compare."""

    anisotropy: float  # of any two words from different sentences
    self_similarity: float  # of one word in two sentences, averaged over words
    intra_sentence: float  # of a word and the mean of its sentence, averaged over sentences
    mev: float = NAN  # variance of a word that its first principal component explains, averaged over words
    mev_baseline: float = NAN  # the same for all words at once


BASELINES = {"self_similarity": "anisotropy", "intra_sentence": "anisotropy", "mev": "mev_baseline"}


def adjusted(scores: GeometryScores, name: str) -> float:
    """A score minus its baseline: the value for arbitrary words."""
    return float(getattr(scores, name) - getattr(scores, BASELINES[name]))


def _normalize(rows: Tensor) -> Tensor:
    norms: Tensor = rows.norm(dim=-1, keepdim=True)
    return rows / norms.clamp(min=torch.finfo(rows.dtype).tiny)


class PairwiseCosine:
    """Mean cosine of all pairs of unit vectors from different sentences, for each of several groups of words."""

    def __init__(self, num_groups: int, width: int) -> None:
        self.total = torch.zeros(num_groups, width, dtype=torch.float64)
        self.within, self.count, self.count_within = torch.zeros(3, num_groups, dtype=torch.float64)

    def add(self, rows: Tensor, groups: Tensor) -> None:
        """Add the unit vectors (N, D) of a sentence, each with its group (N,)."""
        present, inverse = torch.unique(groups, return_inverse=True)
        counts = inverse.bincount(minlength=len(present))
        sums = torch.zeros(len(present), rows.size(1), dtype=torch.float64).index_add_(0, inverse, rows)
        self.total[present] += sums
        self.within[present] += sums.square().sum(-1)
        self.count[present] += counts
        self.count_within[present] += counts.double().square()

    def mean(self) -> Tensor:
        """(num_groups,); NaN for groups without pairs."""
        num_pairs = self.count.square() - self.count_within
        mean: Tensor = (self.total.square().sum(-1) - self.within) / num_pairs.where(num_pairs > 0, torch.nan)
        return mean


class StageStatistics:
    """Accumulates the similarities of one stage, sentence by sentence; type IDs are 0 to num_types - 1."""

    def __init__(self, num_types: int, width: int) -> None:
        self.any_two, self.same_type = PairwiseCosine(1, width), PairwiseCosine(num_types, width)
        self.to_mean, self.num_sentences = 0.0, 0  # cosines of words with the mean of their sentence

    def add(self, rows: Tensor, type_ids: Tensor) -> None:
        """Add the words of a sentence (N, D) with their type IDs (N,), -1 for types that are not compared."""
        unit_rows, has_type = _normalize(rows), type_ids >= 0
        self.any_two.add(unit_rows, torch.zeros_like(type_ids))
        self.same_type.add(unit_rows[has_type], type_ids[has_type])
        if len(rows) > 1:
            self.to_mean += float((unit_rows @ _normalize(rows.mean(0))).mean())
            self.num_sentences += 1

    def scores(self) -> GeometryScores:
        intra_sentence = self.to_mean / self.num_sentences if self.num_sentences else NAN
        return GeometryScores(float(self.any_two.mean()), float(self.same_type.mean().nanmean()), intra_sentence)


# ---- projection


class Occurrences(NamedTuple):
    """Occurrences of the projected words, and their vectors in one stage."""

    words: list[str]  # N
    contexts: list[str]  # N
    vectors: list[Tensor]  # N times (D,)


def _context(example: Example, side: int, index: int) -> str:
    """The text around a word. An output has no text, so its context is words."""
    units = example.units[side]
    if side:
        return " ".join(unit.text for unit in units[max(0, index - CONTEXT_WORDS) : index + CONTEXT_WORDS + 1])
    start, end = units[index].start, units[index].start + len(units[index].text)
    return example.text[max(0, start - CONTEXT_CHARS) : end + CONTEXT_CHARS]


def _add_occurrences(example: Example, side: int, rows: Tensor, words: Sequence[str], occurrences: Occurrences) -> None:
    for index, unit in enumerate(example.units[side]):
        if unit.text in words and occurrences.words.count(unit.text) < MAX_POINTS_PER_WORD:
            occurrences.words.append(unit.text)
            occurrences.contexts.append(_context(example, side, index))
            occurrences.vectors.append(rows[index])


def principal_components(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Projection of float64 rows (N, D) on their first two principal components, (N, 2), and the fraction of the variance that
    each explains, (2,). The sign of a component makes the coordinate with the largest absolute value positive."""
    u, s, _ = np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)
    scores = (u * s)[:, :2]
    signs = np.sign(scores[np.abs(scores).argmax(axis=0), range(scores.shape[1])] + 1e-300)
    projection = np.zeros((len(rows), 2))
    projection[:, : scores.shape[1]] = scores * signs
    total = float((s**2).sum()) or 1.0
    return projection, np.pad(s[:2] ** 2 / total, (0, max(0, 2 - len(s))))


def _words_to_project(counts: Counter[str], words: Sequence[str]) -> list[str]:
    """Those of `words` that occur; by default words of all frequencies."""
    if words:
        return [word for word in dict.fromkeys(words) if counts[word]]
    frequent = [word for word, count in counts.most_common() if count >= MIN_OCCURRENCES and any(map(str.isalnum, word))]
    frequent = frequent[:MAX_TYPES]
    # evenly spaced on a logarithmic axis: most words are rare
    ranks = np.geomspace(1, max(1, len(frequent)), NUM_PROJECTED_WORDS).round().astype(int) - 1
    return [frequent[rank] for rank in dict.fromkeys(ranks.tolist()) if frequent]


def _stage_to_project(sequence: SequenceStages, layer: int | None) -> int:
    """Index of the stage of `layer`, by default the last."""
    if layer is None:
        return len(sequence.stages) - 1
    num_layers = sum(stage.label.rpartition(" ")[2].isdigit() for stage in sequence.stages)
    if not 0 <= layer <= num_layers:
        raise UsageError("layer", f"must be from 0 (the input) to {num_layers}, got {layer}")
    return layer


# ---- measurement


class GeometryResult(NamedTuple):
    """The geometry of one side."""

    sequence: SequenceStages
    scores: list[GeometryScores]  # L
    counts: Counter[str]  # of all words
    num_compared: int  # words compared with themselves
    occurrences: Occurrences
    projected_stage: int

    @property
    def num_words(self) -> int:
        return self.counts.total()


def _type_ids(texts: Sample, side: int, counts: Counter[str]) -> dict[str, int]:
    """IDs of the words to compare with themselves: the most frequent ones that occur in enough sentences."""
    sentences = Counter(word for (example,) in texts.examples for word in {unit.text for unit in example.units[side]})
    frequent = [word for word, _ in counts.most_common() if sentences[word] >= MIN_OCCURRENCES]
    return {word: i for i, word in enumerate(frequent[:MAX_TYPES])}


def _read_vectors(
    run: AnyRun, texts: Sample, sequences: Sequence[SequenceStages], progress: ProgressCallback | None, passes: tuple[int, int]
) -> Iterator[tuple[Example, int, list[Tensor]]]:
    """Each text, each of its sides, and the vectors of that side in every stage. `passes`: index and number of passes."""
    pass_index, num_passes = passes
    for done, (example,) in enumerate(texts.examples, 1 + pass_index * len(texts.examples)):
        for side, vectors in enumerate(word_vectors(example, sequences, run.device)):
            yield example, side, vectors
        if progress is not None:
            progress(done, num_passes * len(texts.examples))


def _add_to_statistics(statistics: Sequence[StageStatistics], vectors: Sequence[Tensor], ids: Tensor) -> None:
    for stage_statistics, rows in zip(statistics, vectors, strict=True):
        stage_statistics.add(rows, ids)


def _add_to_stores(stores: Mapping[tuple[int, int], VectorStore], side: int, vectors: Sequence[Tensor], ids: Tensor) -> None:
    for stage, rows in enumerate(vectors):
        if (side, stage) in stores:
            stores[side, stage].add(rows, ids)


def measure_geometry(
    run: AnyRun, texts: Sample, *, words: Sequence[str] = (), layer: int | None = None, progress: ProgressCallback | None = None
) -> list[GeometryResult]:
    """Scores of every stage of each side, and the vectors of the projected words in one stage."""
    sequences = sequence_stages(run)
    counts = [
        Counter(unit.text for (example,) in texts.examples for unit in example.units[side]) for side in range(len(sequences))
    ]
    type_ids = [_type_ids(texts, side, side_counts) for side, side_counts in enumerate(counts)]
    projected_words = [_words_to_project(side_counts, words) for side_counts in counts]
    projected_stages = [_stage_to_project(sequence, layer) for sequence in sequences]
    occurrences = [Occurrences([], [], []) for _ in sequences]
    widths = [[rows.size(1) for rows in vectors] for vectors in word_vectors(texts.examples[0][0], sequences, run.device)]
    statistics = [[StageStatistics(len(ids), width) for width in stages] for ids, stages in zip(type_ids, widths, strict=True)]
    mev = dict[tuple[int, int], tuple[float, float]]()
    # the similarities require only sums and are computed in the first pass; MEV requires all vectors of a stage
    passes = split_passes(widths, [side_counts.total() for side_counts in counts])
    for pass_index, stages in enumerate(passes):
        stores = {stage: VectorStore() for stage in stages}
        for example, side, vectors in _read_vectors(run, texts, sequences, progress, (pass_index, len(passes))):
            ids = torch.tensor([type_ids[side].get(unit.text, -1) for unit in example.units[side]], dtype=torch.long)
            if pass_index == 0 and example.units[side]:
                _add_to_statistics(statistics[side], vectors, ids)
                _add_occurrences(example, side, vectors[projected_stages[side]], projected_words[side], occurrences[side])
            _add_to_stores(stores, side, vectors, ids)
        mev |= {(side, stage): store.mev(len(type_ids[side])) for (side, stage), store in stores.items()}
    return [
        GeometryResult(
            sequence,
            [GeometryScores(*stage.scores()[:3], *mev[side, index]) for index, stage in enumerate(statistics[side])],
            counts[side],
            len(type_ids[side]),
            occurrences[side],
            projected_stages[side],
        )
        for side, sequence in enumerate(sequences)
    ]


# ---- output


def _table(result: GeometryResult) -> list[str]:
    rows: list[Sequence[str]] = [
        ("layer", "anisotropy", "self-similarity", "adjusted", "intra-sentence", "adjusted", "MEV", "adjusted"),
    ]
    for stage, scores in zip(result.sequence.stages, result.scores, strict=True):
        with_baseline = [value for name in BASELINES for value in (getattr(scores, name), adjusted(scores, name))]
        values = [scores.anisotropy, *with_baseline]
        rows.append((stage.label, *("-" if np.isnan(value) else f"{value:.3f}" for value in values)))
    return align_columns(rows)


def _charts(result: GeometryResult, unit: str) -> list[Figure]:
    """Mean cosines, and fractions of the variance, by layer."""
    x = list(range(len(result.scores)))
    layer_axis = Axis("layer", names=[stage.label.rpartition(" ")[2] for stage in result.sequence.stages])

    def series(label: str, name: str) -> Series:
        return Series(label, x, [getattr(scores, name) for scores in result.scores])

    def adjusted_series(label: str, name: str) -> Series:
        values = [adjusted(scores, name) for scores in result.scores]
        return Series(f"{label}, adjusted", x, values, group=label, dashed=True)

    self_similarity, intra_sentence, mev = "self-similarity", "intra-sentence similarity", f"MEV of a {unit[:-1]}"
    cosines = [
        series(f"anisotropy (any two {unit})", "anisotropy"),
        series(self_similarity, "self_similarity"),
        series(intra_sentence, "intra_sentence"),
        adjusted_series(self_similarity, "self_similarity"),
        adjusted_series(intra_sentence, "intra_sentence"),
    ]
    variances = [series(f"baseline (all {unit})", "mev_baseline"), series(mev, "mev"), adjusted_series(mev, "mev")]
    figures = []
    for name, curves, axis in (
        ("Similarity by layer", cosines, Axis("mean cosine")),
        ("Maximum explainable variance (MEV) by layer", variances, Axis("fraction of the variance")),
    ):
        title = f"{name}: {result.sequence.side}"
        figures.append(Figure(title, lines(curves, x_axis=layer_axis, y_axis=axis, title=title)))
    return figures


def _projection(result: GeometryResult, unit: str) -> list[Figure]:
    """A scatter plot of the projected words, if there are enough occurrences."""
    words, contexts, vectors = result.occurrences
    if len(words) < 3:
        return []
    projection, fractions = principal_components(torch.stack(vectors).numpy())
    stage = result.sequence.stages[result.projected_stage].label
    title = f"Projection of some {unit} in their contexts: {result.sequence.side}, {stage}"
    points = []
    for word in dict.fromkeys(words):
        indices = [i for i, other in enumerate(words) if other == word]
        points.append(Points(word, projection[indices], [contexts[i] for i in indices]))
    first, second = (f"component {i} ({100 * fraction:.0f}% of the variance)" for i, fraction in enumerate(fractions, 1))
    return [Figure(title, scatter(points, axes=(first, second), title=title))]


def _data(result: GeometryResult) -> dict[str, Any]:
    def optional(value: float) -> float | None:
        return None if np.isnan(value) else value

    layers = []
    for stage, scores in zip(result.sequence.stages, result.scores, strict=True):
        values = {name: optional(value) for name, value in scores._asdict().items()}
        values |= {f"{name}_adjusted": optional(adjusted(scores, name)) for name in BASELINES}
        layers.append({"layer": stage.label, **values})
    words, contexts, vectors = result.occurrences
    projection = principal_components(torch.stack(vectors).numpy())[0] if len(words) > 2 else np.zeros((0, 2))
    points = [
        {"text": word, "context": context, "x": float(x), "y": float(y)}
        for word, context, (x, y) in zip(words, contexts, projection, strict=False)
    ]
    return {
        "side": result.sequence.side,
        "words": result.num_words,
        "types": len(result.counts),
        "compared": result.num_compared,
        "layers": layers,
        "map": {"layer": result.sequence.stages[result.projected_stage].label, "points": points},
    }


def geometry(
    run: AnyRun,
    data: Files | None = None,
    *,
    words: Sequence[str] = (),
    layer: int | None = None,
    max_words: int = MAX_WORDS,
    progress: ProgressCallback | None = None,
) -> Explanation:
    """Geometry of a run's word vectors by layer, on `data` or its validation data, and a projection of `words` in `layer`."""
    sequence_stages(run)  # raises UsageError for a run without vectors before any data is read
    texts = sample([run], data, max_words=max_words, distinct=True)
    results = measure_geometry(run, texts, words=words, layer=layer, progress=progress)
    if missing := [word for word in words if not any(result.counts[word] for result in results)]:
        raise UsageError("words", f"{missing[0]!r} is not one of the {texts.unit} of the data")
    figures, text_lines = list[Figure](), list[str]()
    for result in results:
        figures += [*_charts(result, texts.unit), *_projection(result, texts.unit)]
        compared = f"compared with themselves: {result.num_compared:,}, which occur in {MIN_OCCURRENCES} sentences or more"
        heading = f"{result.sequence.side}: {pluralize(result.num_words, texts.unit[:-1])}; {compared}"
        text_lines += [*([""] if text_lines else []), heading, *_table(result)]
    title = f"Geometry of {run.directory.path}"
    counts = {"texts": len(texts.examples), "left_out": texts.left_out, "repeated": texts.repeated}
    values = {"unit": texts.unit, **counts, "sides": [_data(result) for result in results]}
    return Explanation("geometry", title, values, figures, text_lines, guides.GEOMETRY)
