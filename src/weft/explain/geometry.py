"""Geometry of contextual word vectors by layer: similarity of any two words, of one word in several contexts, and of the
words of a sentence (Ethayarajh 2019), and a projection of some words.

For unit vectors of words in sentences, U is the sum of all n, and U(s) the sum of the n(s) in sentence s. The mean cosine of
all pairs of words from different sentences is (|U|^2 - sum |U(s)|^2) / (n^2 - sum n(s)^2): exact, and nothing is kept but
sums. Shapes: N words, D width, L stages of a stack.
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
from weft.explain.explained_variance import VectorStore, batches
from weft.explain.explanation import Explanation, Figure, align_columns
from weft.explain.vectors import MAX_WORDS, Line, Sample, Track, sample, tracks, vectors
from weft.plots.lines import Axis, Series, lines
from weft.plots.scatter import Points, scatter
from weft.runs.eval_data import Files
from weft.runs.run import AnyRun
from weft.text.reading import pluralize

MIN_COUNT = 5  # contexts of a word that is compared with itself
TYPES = 1000  # such words, the most frequent
MAX_WORDS_SHOWN = 60  # contexts of a word in a map
MAX_POINTS = 6  # words in it, unless they are named
AROUND = 30  # characters of a context on either side, for the pointer
NAN = float("nan")
ProgressCallback = Callable[[int, int], None]


class GeometryScores(NamedTuple):
    """How words lie in one stage; cosines, from -1 to 1, and shares of the variance; NaN where there is nothing to compare."""

    anisotropy: float  # of any two words of two sentences
    self_similarity: float  # of one word in two sentences, the mean over words
    intra_sentence: float  # of a word and the mean of its sentence, the mean over sentences
    mev: float = NAN  # what the first principal component explains of a word in all its contexts, the mean over words
    mev_baseline: float = NAN  # the same of all words together


ADJUSTED = {"self_similarity": "anisotropy", "intra_sentence": "anisotropy", "mev": "mev_baseline"}  # and what is subtracted


def adjusted(spread: GeometryScores, name: str) -> float:
    """A measure minus what all words have in common."""
    return float(getattr(spread, name) - getattr(spread, ADJUSTED[name]))


def _unit(rows: Tensor) -> Tensor:
    lengths: Tensor = rows.norm(dim=-1, keepdim=True)
    return rows / lengths.clamp(min=torch.finfo(rows.dtype).tiny)


class Pairs:
    """The mean cosine of pairs of unit vectors from different sentences, for each of several groups."""

    def __init__(self, groups: int, width: int) -> None:
        self.total = torch.zeros(groups, width, dtype=torch.float64)
        self.within, self.count, self.count_within = torch.zeros(3, groups, dtype=torch.float64)

    def add(self, own: Tensor, groups: Tensor) -> None:
        """The unit vectors (N, D) of a sentence, and the group (N,) that each belongs to."""
        here, place = torch.unique(groups, return_inverse=True)
        counts = place.bincount(minlength=len(here))
        part = torch.zeros(len(here), own.size(1), dtype=torch.float64).index_add_(0, place, own)
        self.total[here] += part
        self.within[here] += part.square().sum(-1)
        self.count[here] += counts
        self.count_within[here] += counts.double().square()

    def mean(self) -> Tensor:
        """(groups,); NaN for a group without such pairs."""
        pairs = self.count.square() - self.count_within
        found: Tensor = (self.total.square().sum(-1) - self.within) / pairs.where(pairs > 0, torch.nan)
        return found


class Stage:
    """Sums over the words of one stage; `types` are the words that are compared with themselves, by number."""

    def __init__(self, types: int) -> None:
        self.types, self.all, self.same = types, Pairs(1, 0), Pairs(types, 0)
        self.started, self.within, self.sentences = False, 0.0, 0

    def add(self, rows: Tensor, numbers: Tensor) -> None:
        """The words of a sentence (N, D) and their types (N,), -1 where they are none of them."""
        if not self.started:
            self.started, self.all, self.same = True, Pairs(1, rows.size(1)), Pairs(self.types, rows.size(1))
        own, known = _unit(rows), numbers >= 0
        self.all.add(own, torch.zeros_like(numbers))
        self.same.add(own[known], numbers[known])
        if len(own) > 1:
            self.within += float((own @ _unit(rows.mean(0))).mean())
            self.sentences += 1

    def spread(self) -> GeometryScores:
        within = self.within / self.sentences if self.sentences else NAN
        return GeometryScores(float(self.all.mean()), float(self.same.mean().nanmean()), within)


class WordOccurrences(NamedTuple):
    """Vectors of chosen words in one stage."""

    word: list[str]  # N
    context: list[str]  # N
    vectors: list[Tensor]  # N times (D,)


def principal(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The two directions that float64 rows (N, D) differ most in: where each lies on them, (N, 2), and their shares of the
    variance, (2,). Signs are such that the row that lies furthest out on a direction lies on its positive side."""
    centered = rows - rows.mean(axis=0)
    left, sizes, _ = np.linalg.svd(centered, full_matrices=False)
    places = np.zeros((len(rows), 2))
    found = (left * sizes)[:, :2]
    places[:, : found.shape[1]] = found * np.sign(found[np.abs(found).argmax(axis=0), range(found.shape[1])] + 1e-300)
    total = float((sizes**2).sum()) or 1.0
    return places, np.pad(sizes[:2] ** 2 / total, (0, max(0, 2 - len(sizes))))


def _chosen(counts: Counter[str], words: Sequence[str]) -> list[str]:
    """The words of a map: those that are named and there, or some from the most frequent to the rarest that has contexts."""
    if words:
        return [word for word in dict.fromkeys(words) if counts[word]]
    often = [word for word, number in counts.most_common() if number >= MIN_COUNT and any(map(str.isalnum, word))][:TYPES]
    # evenly over the logarithm of the rank, for there are many rare ones
    ranks = np.geomspace(1, max(1, len(often)), MAX_POINTS).round().astype(int) - 1
    return [often[rank] for rank in dict.fromkeys(ranks.tolist()) if often]


def _context(line: Line, side: int, at: int) -> str:
    """A few characters around a word; of an output its words alone."""
    own = line.units[side]
    if side:
        return " ".join(unit.text for unit in own[max(0, at - 4) : at + 5])
    start, stop = own[at].start, own[at].start + len(own[at].text)
    return line.text[max(0, start - AROUND) : stop + AROUND]


class GeometryResult(NamedTuple):
    """What was found on one side."""

    track: Track
    spreads: list[GeometryScores]  # L
    words: int
    compared: int  # types
    counts: Counter[str]
    spots: WordOccurrences
    at: int  # the stage of the map


def _stage_of_map(track: Track, layer: int | None) -> int:
    """The number of the stage that is drawn: the layer that was asked for, or what is on top."""
    if layer is None:
        return len(track.stages) - 1
    layers = [at for at, stage in enumerate(track.stages) if stage.label.rpartition(" ")[2].isdigit()]
    if not 0 <= layer <= len(layers):
        raise UsageError("layer", f"must be from 0 (the input) to {len(layers)}, got {layer}")
    return layer


def measure_geometry(
    run: AnyRun, given: Sample, *, words: Sequence[str] = (), layer: int | None = None, progress: ProgressCallback | None = None
) -> list[GeometryResult]:
    """How words lie in every stage of each side; of the words of a map, the vectors."""
    known = tracks(run)
    counts = [Counter(unit.text for (line,) in given.lines for unit in line.units[side]) for side in range(len(known))]
    types = [_types(given, side, own) for side, own in enumerate(counts)]
    drawn = [_chosen(own, words) for own in counts]
    at = [_stage_of_map(track, layer) for track in known]
    stages = [[Stage(len(own)) for _ in track.stages] for track, own in zip(known, types, strict=True)]
    spots, fractions = [WordOccurrences([], [], []) for _ in known], dict[tuple[int, int], tuple[float, float]]()
    widths = [[rows.size(1) for rows in own] for own in vectors(given.lines[0][0], known, run.device)]
    passes = batches(widths, [own.total() for own in counts])
    for number, wanted in enumerate(passes):
        kept = {place: VectorStore() for place in wanted}
        for line, side, rows in _readings(run, given, known, progress, (number, len(passes))):
            numbers = torch.tensor([types[side].get(unit.text, -1) for unit in line.units[side]], dtype=torch.long)
            if not number and line.units[side]:
                _add(rows, numbers, stages[side])
                _spot(line, side, rows[at[side]], drawn[side], spots[side])
            _keep(kept, side, rows, numbers)
        fractions |= {(side, stage): one.shares(len(types[side])) for (side, stage), one in kept.items()}
    return [
        GeometryResult(
            track,
            [GeometryScores(*stage.spread()[:3], *fractions[side, number]) for number, stage in enumerate(stages[side])],
            counts[side].total(),
            len(types[side]),
            counts[side],
            spots[side],
            at[side],
        )
        for side, track in enumerate(known)
    ]


def _readings(
    run: AnyRun, given: Sample, known: Sequence[Track], progress: ProgressCallback | None, passes: tuple[int, int]
) -> Iterator[tuple[Line, int, list[Tensor]]]:
    """Every text, each of its sides, and of that side the vectors in every stage; `passes`: which one it is, of how many."""
    number, count = passes
    for done, (line,) in enumerate(given.lines, 1 + number * len(given.lines)):
        for side, rows in enumerate(vectors(line, known, run.device)):
            yield line, side, rows
        if progress is not None:
            progress(done, count * len(given.lines))


def _types(given: Sample, side: int, counts: Counter[str]) -> dict[str, int]:
    """The words that are compared with themselves, by index: the most frequent ones that occur in enough sentences."""
    sentences = Counter(word for (line,) in given.lines for word in {unit.text for unit in line.units[side]})
    often = [word for word, _ in counts.most_common() if sentences[word] >= MIN_COUNT]
    return {word: at for at, word in enumerate(often[:TYPES])}


def _add(rows: Sequence[Tensor], numbers: Tensor, stages: Sequence[Stage]) -> None:
    for stage, own in zip(stages, rows, strict=True):
        stage.add(own, numbers)


def _keep(kept: Mapping[tuple[int, int], VectorStore], side: int, rows: Sequence[Tensor], numbers: Tensor) -> None:
    for stage, own in enumerate(rows):
        if (side, stage) in kept:
            kept[side, stage].add(own, numbers)


def _spot(line: Line, side: int, rows: Tensor, wanted: Sequence[str], spots: WordOccurrences) -> None:
    for at, unit in enumerate(line.units[side]):
        if unit.text in wanted and spots.word.count(unit.text) < MAX_WORDS_SHOWN:
            spots.word.append(unit.text)
            spots.context.append(_context(line, side, at))
            spots.vectors.append(rows[at])


# ---- for people


def _table(found: GeometryResult) -> list[str]:
    rows: list[Sequence[str]] = [
        ("layer", "anisotropy", "self-similarity", "adjusted", "intra-sentence", "adjusted", "MEV", "adjusted"),
    ]
    for stage, own in zip(found.track.stages, found.spreads, strict=True):
        numbers = (own.anisotropy, *(x for name in ADJUSTED for x in (getattr(own, name), adjusted(own, name))))
        rows.append((stage.label, *("-" if np.isnan(number) else f"{number:.3f}" for number in numbers)))
    return align_columns(rows)


def _charts(found: GeometryResult, unit: str) -> list[Figure]:
    """Cosines, and shares of the variance, layer by layer."""
    x, spreads = list(range(len(found.spreads))), found.spreads
    across = Axis("layer", names=[stage.label.rpartition(" ")[2] for stage in found.track.stages])

    def both(label: str, name: str) -> list[Series]:
        own = Series(label, x, [getattr(spread, name) for spread in spreads])
        return [own, Series(f"{label}, adjusted", x, [adjusted(spread, name) for spread in spreads], group=label, dashed=True)]

    same, within = "self-similarity", "intra-sentence similarity"
    cosine, explained = "Similarity by layer", "Maximum explainable variance (MEV) by layer"
    first = Series(f"anisotropy (any two {unit})", x, [own.anisotropy for own in spreads])
    (of_same, less), (of_within, less_within) = both(same, "self_similarity"), both(within, "intra_sentence")
    of_all = Series(f"baseline (all {unit})", x, [own.mev_baseline for own in spreads])
    drawn = [
        (cosine, [first, of_same, of_within, less, less_within], Axis("mean cosine")),
        (explained, [of_all, *both(f"MEV of a {unit[:-1]}", "mev")], Axis("fraction of the variance")),
    ]
    return [
        Figure(f"{what}: {found.track.side}", lines(series, x_axis=across, y_axis=up, title=f"{what}: {found.track.side}"))
        for what, series, up in drawn
    ]


def _map(found: GeometryResult, unit: str) -> Figure | None:
    if len(found.spots.word) < 3:
        return None
    places, fractions = principal(torch.stack(found.spots.vectors).numpy())
    stage = found.track.stages[found.at].label
    what = f"Projection of some {unit} in their contexts: {found.track.side}, {stage}"
    points = [
        Points(
            word,
            places[[at for at, one in enumerate(found.spots.word) if one == word]],
            [context for one, context in zip(found.spots.word, found.spots.context, strict=True) if one == word],
        )
        for word in dict.fromkeys(found.spots.word)
    ]
    axes = tuple(f"component {number} ({100 * fraction:.0f}% of the variance)" for number, fraction in enumerate(fractions, 1))
    return Figure(what, scatter(points, axes=(axes[0], axes[1]), title=what))


def _data(found: GeometryResult) -> dict[str, Any]:
    def number(value: float) -> float | None:
        return None if np.isnan(value) else value

    layers = []
    for stage, own in zip(found.track.stages, found.spreads, strict=True):
        less = {f"{name}_adjusted": number(adjusted(own, name)) for name in ADJUSTED}
        layers.append({"layer": stage.label, **{name: number(value) for name, value in own._asdict().items()}, **less})
    places = principal(torch.stack(found.spots.vectors).numpy())[0] if len(found.spots.word) > 2 else np.zeros((0, 2))
    points = [
        {"text": word, "context": context, "x": float(x), "y": float(y)}
        for word, context, (x, y) in zip(found.spots.word, found.spots.context, places, strict=False)
    ]
    about = {"side": found.track.side, "words": found.words, "types": len(found.counts), "compared": found.compared}
    return {**about, "layers": layers, "map": {"layer": found.track.stages[found.at].label, "points": points}}


def geometry(
    run: AnyRun,
    data: Files | None = None,
    *,
    words: Sequence[str] = (),
    layer: int | None = None,
    max_words: int = MAX_WORDS,
    progress: ProgressCallback | None = None,
) -> Explanation:
    """How alike vectors are, layer by layer, over a text or the run's own validation data; a map of `words` in one layer."""
    tracks(run)  # a run without vectors is refused before anything is read
    given = sample([run], data, max_words=max_words, distinct=True)
    found = measure_geometry(run, given, words=words, layer=layer, progress=progress)
    if missing := [word for word in words if not any(one.counts[word] for one in found)]:
        raise UsageError("words", f"{missing[0]!r} is not one of the {given.unit} of the data")
    pictures, said = list[Figure](), list[str]()
    for one in found:
        drawn = _map(one, given.unit)
        pictures += [*_charts(one, given.unit), *([] if drawn is None else [drawn])]
        compared = f"compared with themselves: {one.compared:,}, which occur in {MIN_COUNT} sentences or more"
        about = f"{one.track.side}: {pluralize(one.words, given.unit[:-1])}; {compared}"
        said += ["", about, *_table(one)] if said else [about, *_table(one)]
    title = f"Geometry of {run.directory.path}"
    about_texts = {"texts": len(given.lines), "left_out": given.left_out, "repeated": given.repeated}
    values = {"unit": given.unit, **about_texts, "sides": [_data(one) for one in found]}
    return Explanation("geometry", title, values, pictures, said, guides.GEOMETRY)
