"""Do two layers, two runs, two heads do the same? Layers by linear CKA (Kornblith et al. 2019), heads by how far apart the
patterns are that they look with (Jensen-Shannon divergence, as in Clark et al. 2019).

Shapes: N words, D and E widths, H heads, T queries, S keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations_with_replacement, product
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from weft.errors import UsageError
from weft.explain import guides
from weft.explain.attention import COMPONENT_NAMES, AttentionMap, read_attention, sites
from weft.explain.explanation import Explanation, Figure, align_columns
from weft.explain.inputs import network, stacks
from weft.explain.vectors import MAX_WORDS, Sample, Track, Unit, sample, tracks, vectors
from weft.plots.similarity_matrix import similarity_matrix
from weft.runs.eval_data import Files
from weft.runs.run import AnyRun
from weft.text.reading import pluralize

ROOM = 2**30  # bytes of sums that are kept at once; where they take more, the text is read again
CHUNK = 512  # words whose products are computed at once
MIN_SAMPLES = 4  # times the width: with fewer words, layers look alike by chance
LOOKED = 2000  # words that heads are compared on: patterns hold a number for each two of a text
ProgressCallback = Callable[[int, int], None]
Rows = Sequence[Tensor]  # of each layer, float64 (N, D): the same words in all


# ---- layers


class Products:
    """Sums of products of two layers over words that come in parts: (N, D) and (N, E), centered at the end. Only D x E numbers
    are kept, however many words there are."""

    def __init__(self) -> None:
        self.count = 0
        self.sums: Tensor | None = None

    def add(self, x: Tensor, y: Tensor) -> None:
        if self.sums is None:  # about the first words' mean, so that little is lost where vectors share a large part
            self.x0, self.y0 = x.mean(0), y.mean(0)
            self.x, self.y = torch.zeros_like(self.x0), torch.zeros_like(self.y0)
            self.sums = x.new_zeros(x.size(1), y.size(1))
        x, y = x - self.x0, y - self.y0
        self.sums += x.T @ y
        self.x, self.y, self.count = self.x + x.sum(0), self.y + y.sum(0), self.count + len(x)

    def norm(self) -> float:
        """|X' Y| of the centered words (Frobenius), squared."""
        if self.sums is None:
            return 0.0
        return float((self.sums - torch.outer(self.x, self.y) / self.count).square().sum())


def _in_chunks(parts: Iterator[Rows]) -> Iterator[Rows]:
    """The same words, many at a time: products of few are slow."""
    held, size = list[Rows](), 0
    for rows in parts:
        held.append(rows)
        size += len(rows[0])
        if size >= CHUNK:
            yield [torch.cat(own) for own in zip(*held, strict=True)]
            held, size = [], 0
    if held:
        yield [torch.cat(own) for own in zip(*held, strict=True)]


def linear_cka(
    parts: Callable[[], Iterator[Rows]], widths: Sequence[int], first: Sequence[int], second: Sequence[int]
) -> np.ndarray:
    """float64 (L, M): |X' Y|^2 / (|X' X| |Y' Y|) of each layer numbered in `first` and each in `second`, on the same words.
    `parts` gives the words of all layers anew each time it is asked: no more sums are kept at once than ROOM."""
    own = [(one, one) for one in dict.fromkeys([*first, *second])]
    wanted = dict.fromkeys([*own, *((min(one, two), max(one, two)) for one, two in product(first, second))])
    found: dict[tuple[int, int], float] = {}
    while missing := [pair for pair in wanted if pair not in found]:
        kept, room = dict[tuple[int, int], Products](), ROOM
        for one, two in missing:
            room -= 8 * widths[one] * widths[two]
            if kept and room < 0:
                break
            kept[one, two] = Products()
        for rows in _in_chunks(parts()):
            for (one, two), products in kept.items():
                products.add(rows[one], rows[two])
        found |= {pair: products.norm() for pair, products in kept.items()}
    cka = np.zeros((len(first), len(second)))
    for (row, one), (column, two) in product(enumerate(first), enumerate(second)):
        size = (found[one, one] * found[two, two]) ** 0.5
        # a layer that says the same of all words is like none
        cka[row, column] = found[min(one, two), max(one, two)] / size if size else 0.0
    return cka


def _shared(lines: Sequence[Sequence[Unit]]) -> list[list[int]]:
    """For each run the numbers of the words that all of them have."""
    common = set.intersection(*({unit.start for unit in own} for own in lines))
    return [[at for at, unit in enumerate(own) if unit.start in common] for own in lines]


class SharedVectors(NamedTuple):
    """The layers of one side of several runs, on the words that all of them have."""

    side: str
    labels: list[list[str]]  # of each run, its layers
    words: int
    widths: list[int]  # of the layers of all runs, one run after another
    parts: Callable[[], Iterator[Rows]]  # the words in those layers, anew each time

    def numbers(self, run: int) -> range:
        """Those of the layers of one run."""
        before = sum(map(len, self.labels[:run]))
        return range(before, before + len(self.labels[run]))


def shared_vectors(
    runs: Sequence[AnyRun], data: Files | None = None, *, max_words: int = MAX_WORDS, progress: ProgressCallback | None = None
) -> tuple[str, list[SharedVectors]]:
    """What is compared, words or tokens, and the layers of each side; the runs read texts, or all of them pairs."""
    of_pairs = [len(stacks(one)) > 1 for one in runs]
    if len(set(of_pairs)) > 1:
        other = runs[of_pairs.index(not of_pairs[0])]
        several = "two" if len(runs) == 2 else "runs"
        names = f"{runs[0].directory.path} and {other.directory.path}"
        raise UsageError("similarity", f"{names} read texts and pairs", f"compare {several} that read the same")
    known = [tracks(one) for one in runs]
    given = sample(runs, data, max_words=max_words)
    return given.unit, [_side(runs, given, known, side, progress) for side in range(len(known[0]))]


def _side(
    runs: Sequence[AnyRun], given: Sample, all_tracks: Sequence[Sequence[Track]], side: int, progress: ProgressCallback | None
) -> SharedVectors:
    own = [known[side] for known in all_tracks]
    shared = [_shared([line.units[side] for line in lines]) for lines in given.lines]

    def parts() -> Iterator[Rows]:
        for done, (lines, common) in enumerate(zip(given.lines, shared, strict=True), 1):
            said = list[Tensor]()
            for line, known, run, at in zip(lines, all_tracks, runs, common, strict=True):
                said += [rows[at] for rows in vectors(line, known, run.device)[side]]
            yield said
            if progress is not None:
                progress(done, len(given.lines))

    widths = [rows.size(1) for rows in next(parts())]
    labels = [[stage.label for stage in track.stages] for track in own]
    return SharedVectors(own[0].side, labels, sum(len(common[0]) for common in shared), widths, parts)


def sample_warning(one: SharedVectors, unit: str) -> list[str]:
    """A line where there are so few words that layers look alike by chance."""
    widest = max(one.widths)
    progress = f"few {unit} for vectors of {widest}: CKA comes out too high; give more text"
    return [progress] if one.words < MIN_SAMPLES * widest else []


def layer_similarity(
    run: AnyRun,
    data: Files | None = None,
    other: AnyRun | None = None,
    *,
    max_words: int = MAX_WORDS,
    progress: ProgressCallback | None = None,
) -> Explanation:
    """Every layer beside every other, of one run, or of one beside those of another on the same text."""
    runs = [run] if other is None else [run, other]
    unit, found = shared_vectors(runs, data, max_words=max_words, progress=progress)
    paths = [str(one.directory.path) for one in runs]
    pictures, said, sides = list[Figure](), list[str](), list[dict[str, Any]]()
    for one in found:
        cka = linear_cka(one.parts, one.widths, one.numbers(0), one.numbers(len(runs) - 1))
        what = f"How alike layers are: {one.side}"
        axes = (paths[0], paths[-1]) if other is not None else None
        rows, columns = ([name.rpartition(" ")[2] for name in names] for names in (one.labels[0], one.labels[-1]))
        svg = similarity_matrix(cka.clip(0, 1), rows=rows, columns=columns, name="linear CKA", title=what, axes=axes)
        pictures.append(Figure(what, svg))
        about = f"{one.side}: {pluralize(one.words, unit[:-1])}"
        body = [[name, *(f"{value:.2f}" for value in row)] for name, row in zip(one.labels[0], cka, strict=True)]
        said += [*([""] if said else []), about, *align_columns([["", *one.labels[-1]], *body]), *sample_warning(one, unit)]
        names = {"rows": one.labels[0], "columns": one.labels[-1]}
        sides.append({"side": one.side, "words": one.words, **names, "cka": cka.tolist()})
    title = f"Layers of {' and '.join(paths)}"
    return Explanation("layers", title, {"unit": unit, "runs": paths, "sides": sides}, pictures, said, guides.LAYERS)


# ---- heads


def divergence(weights: Tensor) -> Tensor:
    """(H, H), in bits: the Jensen-Shannon divergence of every two of H patterns (H, T, S), the mean over their T rows."""

    def entropy(fractions: Tensor) -> Tensor:
        nats: Tensor = -torch.special.xlogy(fractions, fractions).sum(-1).mean(-1)
        return nats / math.log(2)

    own = entropy(weights)
    # a head at a time: all pairs at once would be H times as large
    found = torch.stack([entropy((weights + one) / 2) - (own + entropy(one)) / 2 for one in weights])
    return found.clamp(min=0.0)  # rounding, if both are equal


class HeadDivergence(NamedTuple):
    """The heads of one part."""

    part: str
    names: list[str]  # layer and head, both from 1
    bits: np.ndarray  # (H, H)
    words: int


def _by_part(found: Sequence[AttentionMap]) -> Iterator[tuple[str, list[str], Tensor]]:
    for part in dict.fromkeys(one.site.component for one in found):
        mine = [one for one in found if one.site.component == part]
        names = [f"{one.site.layer}.{head}" for one in mine for head in one.heads]
        weights = torch.from_numpy(np.concatenate([one.weights for one in mine])).double()
        yield part, names, weights


def head_divergence(
    run: AnyRun, data: Files | None = None, *, max_words: int = LOOKED, progress: ProgressCallback | None = None
) -> list[HeadDivergence]:
    """How far apart every two heads of a part are, the mean over the words that look."""
    model = network(run)
    known = [] if model is None else [site for site in sites(model) if site.component != "pool"]
    if not known:
        raise UsageError("similarity", f"{run.config.arch} has no attention ({run.directory.path})")
    given = sample([run], data, max_words=max_words)
    sums, rows, named = dict[str, Tensor](), dict[str, int](), dict[str, list[str]]()
    for done, (line,) in enumerate(given.lines, 1):
        for part, names, weights in _by_part(read_attention(line.reading, known, None, run.device)):
            count = weights.size(1)
            sums[part] = sums.get(part, torch.zeros(())) + divergence(weights) * count
            rows[part], named[part] = rows.get(part, 0) + count, names
        if progress is not None:
            progress(done, len(given.lines))
    return [HeadDivergence(part, named[part], (total / rows[part]).numpy(), rows[part]) for part, total in sums.items()]


def _nearest(one: HeadDivergence, top: int) -> list[str]:
    """The pairs that are nearest to each other."""
    pairs = [(a, b) for a, b in combinations_with_replacement(range(len(one.names)), 2) if a != b]
    pairs.sort(key=lambda pair: one.bits[pair])
    rows: list[Sequence[str]] = [("heads most alike", "", "bits apart")]
    rows += [(one.names[a], one.names[b], f"{one.bits[a, b]:.3f}") for a, b in pairs[:top]]
    return align_columns(rows, left=(0, 1))


def head_similarity(
    run: AnyRun, data: Files | None = None, *, max_words: int = LOOKED, top: int = 5, progress: ProgressCallback | None = None
) -> Explanation:
    """Every head beside every other of its part: 0 bits apart where they look alike, 1 where they never look at the same."""
    found = head_divergence(run, data, max_words=max_words, progress=progress)
    pictures, said, parts = list[Figure](), list[str](), list[dict[str, Any]]()
    for one in found:
        what = f"How far apart heads look, layer.head: {COMPONENT_NAMES[one.part]}"
        bits = one.bits.clip(0, 1)
        pictures.append(Figure(what, similarity_matrix(bits, rows=one.names, columns=one.names, name="bits apart", title=what)))
        said += [*([""] if said else []), f"{COMPONENT_NAMES[one.part]}, {one.words:,} positions", *_nearest(one, top)]
        parts.append({"part": one.part, "positions": one.words, "heads": one.names, "bits": one.bits.tolist()})
    return Explanation("heads", f"Heads of {run.directory.path}", {"parts": parts}, pictures, said, guides.HEADS_APART)
