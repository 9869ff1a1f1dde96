"""Similarity of layers by linear CKA (Kornblith et al. 2019), and of attention heads by the Jensen-Shannon divergence of their
attention weights (as in Clark et al. 2019).

Shapes: N words, D and E vector sizes, H heads, T queries, S keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, product
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from weft.errors import UsageError
from weft.explain import guides
from weft.explain.attention import COMPONENT_NAMES, AttentionMap, read_attention, sites
from weft.explain.explanation import Explanation, Figure, align_columns
from weft.explain.inputs import network, stacks
from weft.explain.vectors import MAX_WORDS, Sample, SequenceStages, Unit, sample, sequence_stages, word_vectors
from weft.plots.similarity_matrix import similarity_matrix
from weft.runs.eval_data import Files
from weft.runs.run import AnyRun
from weft.text.reading import pluralize

MAX_BYTES = 2**30  # cross-products stored at once; if all pairs of layers need more, the text is read several times
CHUNK_WORDS = 512  # words multiplied at once: products of few rows are slow
MIN_WORDS_PER_DIM = 4  # with fewer words per dimension, CKA is high by chance
MAX_HEAD_WORDS = 2000  # words to compare heads on: attention weights are quadratic in the text length
ProgressCallback = Callable[[int, int], None]
LayerVectors = Sequence[Tensor]  # one float64 (N, D) per layer, on the same words


# ---- layers


class CrossProduct:
    """Centered cross-product X'Y of two layers (N, D) and (N, E), accumulated over chunks of words in D x E memory."""

    def __init__(self) -> None:
        self.count = 0
        self.product: Tensor | None = None

    def add(self, x: Tensor, y: Tensor) -> None:
        if self.product is None:  # shift by the mean of the first chunk, so that a large mean costs little precision
            self.x_shift, self.y_shift = x.mean(0), y.mean(0)
            self.x_sum, self.y_sum = torch.zeros_like(self.x_shift), torch.zeros_like(self.y_shift)
            self.product = x.new_zeros(x.size(1), y.size(1))
        x, y = x - self.x_shift, y - self.y_shift
        self.product += x.T @ y
        self.x_sum, self.y_sum, self.count = self.x_sum + x.sum(0), self.y_sum + y.sum(0), self.count + len(x)

    def squared_norm(self) -> float:
        """Squared Frobenius norm of X'Y for centered X and Y."""
        if self.product is None:
            return 0.0
        return float((self.product - torch.outer(self.x_sum, self.y_sum) / self.count).square().sum())


def _in_chunks(parts: Iterator[LayerVectors]) -> Iterator[LayerVectors]:
    """The same words in chunks of at least CHUNK_WORDS."""
    chunk, size = list[LayerVectors](), 0
    for vectors in parts:
        chunk.append(vectors)
        size += len(vectors[0])
        if size >= CHUNK_WORDS:
            yield [torch.cat(layer) for layer in zip(*chunk, strict=True)]
            chunk, size = [], 0
    if chunk:
        yield [torch.cat(layer) for layer in zip(*chunk, strict=True)]


def linear_cka(
    read_parts: Callable[[], Iterator[LayerVectors]], widths: Sequence[int], rows: Sequence[int], columns: Sequence[int]
) -> np.ndarray:
    """Linear CKA, |X'Y|^2 / (|X'X| |Y'Y|), of each layer in `rows` with each in `columns`, float64 (rows, columns).

    `read_parts` returns a new iterator over the vectors of all layers. It is called as often as MAX_BYTES requires.
    """
    diagonal = [(layer, layer) for layer in [*rows, *columns]]
    pairs = dict.fromkeys([*diagonal, *((min(i, j), max(i, j)) for i, j in product(rows, columns))])
    norms: dict[tuple[int, int], float] = {}
    while missing := [pair for pair in pairs if pair not in norms]:
        products, free = dict[tuple[int, int], CrossProduct](), MAX_BYTES
        for i, j in missing:
            free -= 8 * widths[i] * widths[j]
            if products and free < 0:
                break
            products[i, j] = CrossProduct()
        for vectors in _in_chunks(read_parts()):
            for (i, j), cross_product in products.items():
                cross_product.add(vectors[i], vectors[j])
        norms |= {pair: cross_product.squared_norm() for pair, cross_product in products.items()}
    cka = np.zeros((len(rows), len(columns)))
    for (row, i), (column, j) in product(enumerate(rows), enumerate(columns)):
        scale = (norms[i, i] * norms[j, j]) ** 0.5
        cka[row, column] = norms[min(i, j), max(i, j)] / scale if scale else 0.0  # 0 for a layer with constant vectors
    return cka


class SharedVectors(NamedTuple):
    """The layers of one side of several runs, on the words that all runs have."""

    side: str
    labels: list[list[str]]  # names of the layers of each run
    num_words: int
    widths: list[int]  # vector sizes of the layers of all runs, one run after another
    read_parts: Callable[[], Iterator[LayerVectors]]  # a new iterator over the vectors in these layers

    def layer_indices(self, run: int) -> range:
        """The indices of the layers of one run."""
        start = sum(map(len, self.labels[:run]))
        return range(start, start + len(self.labels[run]))


def _shared_indices(units: Sequence[Sequence[Unit]]) -> list[list[int]]:
    """For each run, the indices of the units that all runs have."""
    common = set.intersection(*({unit.start for unit in run_units} for run_units in units))
    return [[i for i, unit in enumerate(run_units) if unit.start in common] for run_units in units]


def _shared_side(
    runs: Sequence[AnyRun],
    texts: Sample,
    sequences: Sequence[Sequence[SequenceStages]],
    side: int,
    progress: ProgressCallback | None,
) -> SharedVectors:
    shared = [_shared_indices([example.units[side] for example in examples]) for examples in texts.examples]

    def read_parts() -> Iterator[LayerVectors]:
        for done, (examples, run_indices) in enumerate(zip(texts.examples, shared, strict=True), 1):
            vectors = list[Tensor]()
            for run, run_sequences, example, indices in zip(runs, sequences, examples, run_indices, strict=True):
                vectors += [rows[indices] for rows in word_vectors(example, run_sequences, run.device)[side]]
            yield vectors
            if progress is not None:
                progress(done, len(texts.examples))

    widths = [rows.size(1) for rows in next(read_parts())]
    labels = [[stage.label for stage in run_sequences[side].stages] for run_sequences in sequences]
    num_words = sum(len(run_indices[0]) for run_indices in shared)
    return SharedVectors(sequences[0][side].side, labels, num_words, widths, read_parts)


def shared_vectors(
    runs: Sequence[AnyRun], data: Files | None = None, *, max_words: int = MAX_WORDS, progress: ProgressCallback | None = None
) -> tuple[str, list[SharedVectors]]:
    """The unit of comparison, words or tokens, and the layers of each side. Raises UsageError if the runs' inputs differ."""
    has_pairs = [len(stacks(run)) > 1 for run in runs]
    if len(set(has_pairs)) > 1:
        other = runs[has_pairs.index(not has_pairs[0])]
        paths = f"{runs[0].directory.path} and {other.directory.path}"
        raise UsageError("similarity", f"{paths} read texts and pairs", "compare runs with the same kind of input")
    sequences = [sequence_stages(run) for run in runs]
    texts = sample(runs, data, max_words=max_words)
    return texts.unit, [_shared_side(runs, texts, sequences, side, progress) for side in range(len(sequences[0]))]


def sample_warning(shared: SharedVectors, unit: str) -> list[str]:
    """A warning if there are so few words that CKA is high by chance."""
    width = max(shared.widths)
    if shared.num_words >= MIN_WORDS_PER_DIM * width:
        return []
    return [f"warning: few {unit} for vectors of size {width}: CKA is biased upward; use more text"]


def layer_similarity(
    run: AnyRun,
    data: Files | None = None,
    other: AnyRun | None = None,
    *,
    max_words: int = MAX_WORDS,
    progress: ProgressCallback | None = None,
) -> Explanation:
    """Linear CKA of each layer of a run with each layer of `other`, by default of the same run, on the same text."""
    runs = [run] if other is None else [run, other]
    unit, sides = shared_vectors(runs, data, max_words=max_words, progress=progress)
    paths = [str(run.directory.path) for run in runs]
    figures, lines, side_data = list[Figure](), list[str](), list[dict[str, Any]]()
    for shared in sides:
        row_labels, column_labels = shared.labels[0], shared.labels[-1]
        cka = linear_cka(shared.read_parts, shared.widths, shared.layer_indices(0), shared.layer_indices(len(runs) - 1))
        if not np.isfinite(cka).all():
            problem = f"a layer has the same vector for all {unit} of the {shared.side}"
            raise UsageError("similarity", problem, "use more text, or a run that is trained longer")
        title = f"Similarity of layers: {shared.side}"
        axes = (paths[0], paths[-1]) if other is not None else None
        rows, columns = ([label.rpartition(" ")[2] for label in labels] for labels in (row_labels, column_labels))
        svg = similarity_matrix(cka.clip(0, 1), rows=rows, columns=columns, name="linear CKA", title=title, axes=axes)
        figures.append(Figure(title, svg))
        table = [[label, *(f"{value:.2f}" for value in row)] for label, row in zip(row_labels, cka, strict=True)]
        lines += [*([""] if lines else []), f"{shared.side}: {pluralize(shared.num_words, unit[:-1])}"]
        lines += [*align_columns([["", *column_labels], *table]), *sample_warning(shared, unit)]
        labels = {"rows": row_labels, "columns": column_labels}
        side_data.append({"side": shared.side, "words": shared.num_words, **labels, "cka": cka.tolist()})
    title = f"Layers of {' and '.join(paths)}"
    return Explanation("layers", title, {"unit": unit, "runs": paths, "sides": side_data}, figures, lines, guides.LAYERS)


# ---- heads


def js_divergence(weights: Tensor) -> Tensor:
    """Jensen-Shannon divergence of each pair of heads in bits, (H, H): weights (H, T, S), averaged over T queries."""

    def entropy(probs: Tensor) -> Tensor:
        nats: Tensor = -torch.special.xlogy(probs, probs).sum(-1).mean(-1)
        return nats / math.log(2)

    entropies = entropy(weights)
    # one head at a time: all pairs at once need H times the memory
    divergence = torch.stack([entropy((weights + head) / 2) - (entropies + entropy(head)) / 2 for head in weights])
    return divergence.clamp(min=0.0)  # rounding can make it negative


class HeadDivergence(NamedTuple):
    """Divergence of the attention heads of one component."""

    component: str
    names: list[str]  # layer.head, both from 1
    bits: np.ndarray  # (H, H)
    num_positions: int


def _by_component(maps: Sequence[AttentionMap]) -> Iterator[tuple[str, list[str], Tensor]]:
    """The component, the head names and the weights (H, T, S) of the heads of each component."""
    for component in dict.fromkeys(layer.site.component for layer in maps):
        layers = [layer for layer in maps if layer.site.component == component]
        names = [f"{layer.site.layer}.{head}" for layer in layers for head in layer.heads]
        yield component, names, torch.from_numpy(np.concatenate([layer.weights for layer in layers])).double()


def head_divergence(
    run: AnyRun, data: Files | None = None, *, max_words: int = MAX_HEAD_WORDS, progress: ProgressCallback | None = None
) -> list[HeadDivergence]:
    """Divergence of each pair of heads of each component, averaged over query positions."""
    model = network(run)
    attention_sites = [] if model is None else [site for site in sites(model) if site.component != "pooling"]
    if not attention_sites:
        raise UsageError("similarity", f"{run.config.arch} has no attention ({run.directory.path})")
    texts = sample([run], data, max_words=max_words)
    sums, num_positions, head_names = dict[str, Tensor](), dict[str, int](), dict[str, list[str]]()
    for done, (example,) in enumerate(texts.examples, 1):
        maps = read_attention(example.model_input, attention_sites, None, run.device)
        for component, names, weights in _by_component(maps):
            count = weights.size(1)
            sums[component] = sums.get(component, torch.zeros(())) + js_divergence(weights) * count
            num_positions[component], head_names[component] = num_positions.get(component, 0) + count, names
        if progress is not None:
            progress(done, len(texts.examples))
    return [
        HeadDivergence(component, head_names[component], (total / num_positions[component]).numpy(), num_positions[component])
        for component, total in sums.items()
    ]


def _most_similar(heads: HeadDivergence, top: int) -> list[str]:
    """A table of the pairs of heads with the smallest divergence."""
    pairs = sorted(combinations(range(len(heads.names)), 2), key=lambda pair: heads.bits[pair])
    rows: list[Sequence[str]] = [("most similar heads", "", "divergence (bits)")]
    rows += [(heads.names[i], heads.names[j], f"{heads.bits[i, j]:.3f}") for i, j in pairs[:top]]
    return align_columns(rows, left=(0, 1))


def head_similarity(
    run: AnyRun,
    data: Files | None = None,
    *,
    max_words: int = MAX_HEAD_WORDS,
    top: int = 5,
    progress: ProgressCallback | None = None,
) -> Explanation:
    """Divergence of each pair of heads of each component: 0 bits for equal attention weights, 1 for disjoint ones."""
    figures, lines, components = list[Figure](), list[str](), list[dict[str, Any]]()
    for heads in head_divergence(run, data, max_words=max_words, progress=progress):
        name = COMPONENT_NAMES[heads.component]
        title = f"Divergence of attention heads (layer.head): {name}"
        svg = similarity_matrix(heads.bits.clip(0, 1), rows=heads.names, columns=heads.names, name="bits", title=title)
        figures.append(Figure(title, svg))
        lines += [*([""] if lines else []), f"{name}, {heads.num_positions:,} positions", *_most_similar(heads, top)]
        values = {"positions": heads.num_positions, "heads": heads.names, "bits": heads.bits.tolist()}
        components.append({"part": heads.component, **values})
    return Explanation(
        "heads", f"Heads of {run.directory.path}", {"parts": components}, figures, lines, guides.HEADS_DIVERGENCE
    )
