"""Similarity of several runs by linear CKA: of one layer of each run, or of the most similar layers of each pair of runs.

All runs read the same texts, split so that every run can read them. Shapes: R runs, L layers of all runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, product
from typing import Any, NamedTuple

import numpy as np

from weft.errors import UsageError
from weft.explain import guides
from weft.explain.explanation import Explanation, Figure, align_columns
from weft.explain.similarity import ProgressCallback, SharedVectors, linear_cka, sample_warning, shared_vectors
from weft.explain.vectors import MAX_WORDS
from weft.plots.similarity_matrix import similarity_matrix
from weft.runs.eval_data import Files
from weft.runs.run import AnyRun
from weft.text.reading import pluralize


def short_names(paths: Sequence[str]) -> list[str]:
    """Short names of runs: the last part of each path, or the whole path if two have the same last part."""
    names = [path.rstrip("/").rpartition("/")[2] or path for path in paths]
    return [name if names.count(name) == 1 else path for name, path in zip(names, paths, strict=True)]


def _layer_of_each_run(shared: SharedVectors, paths: Sequence[str], layer: int | None) -> list[int]:
    """Index, within each run, of `layer`, by default of the last layer."""
    if layer is None:
        return [len(labels) - 1 for labels in shared.labels]
    for path, labels in zip(paths, shared.labels, strict=True):
        num_layers = sum(label.rpartition(" ")[2].isdigit() for label in labels)
        if not 0 <= layer <= num_layers:
            raise UsageError("layer", f"must be from 0 (the input) to {num_layers} for {path}, got {layer}")
    return [layer] * len(paths)


class BestLayers(NamedTuple):
    """The most similar layers of each pair of runs."""

    cka: np.ndarray  # (R, R)
    layers: list[list[tuple[str, str]]]  # R times R: the layer of the row, the layer of the column


def _best_layers(shared: SharedVectors, cka: np.ndarray) -> BestLayers:
    """The most similar layers by the CKA of all pairs of layers, (L, L)."""
    runs = range(len(shared.labels))
    best, layers = np.zeros((len(runs), len(runs))), [[("", "") for _ in runs] for _ in runs]
    for row, column in product(runs, runs):
        block = cka[np.ix_(shared.layer_indices(row), shared.layer_indices(column))]
        if row == column:  # every layer has CKA 1 with itself: use the last
            i = j = len(block) - 1
        else:
            i, j = (int(index) for index in np.unravel_index(block.argmax(), block.shape))
        best[row, column] = block[i, j]
        layers[row][column] = (shared.labels[row][i], shared.labels[column][j])
    return BestLayers(best, layers)


def _table(corner: str, cka: np.ndarray, rows: Sequence[str], columns: Sequence[str]) -> list[str]:
    cells = [[name, *(f"{value:.2f}" for value in values)] for name, values in zip(rows, cka, strict=True)]
    return align_columns([[corner, *columns], *cells])


def _most_similar(best: BestLayers, names: Sequence[str], top: int) -> list[str]:
    """A table of the most similar pairs of runs, with their layers."""
    pairs = sorted(combinations(range(len(names)), 2), key=lambda pair: -best.cka[pair])
    rows: list[Sequence[str]] = [("most similar runs", "", "CKA")]
    for i, j in pairs[:top]:
        first, second = best.layers[i][j]
        rows.append((f"{names[i]}, {first}", f"{names[j]}, {second}", f"{best.cka[i, j]:.2f}"))
    return align_columns(rows, left=(0, 1))


class SideOutput(NamedTuple):
    """Text, figures and JSON data of one side."""

    lines: list[str]
    figures: list[Figure]
    data: dict[str, Any]


def _compare_side(shared: SharedVectors, paths: Sequence[str], unit: str, layer: int | None, top: int) -> SideOutput:
    names, selected = short_names(paths), _layer_of_each_run(shared, paths, layer)
    indices = [shared.layer_indices(run)[index] for run, index in enumerate(selected)]
    # the best layers require all pairs of layers, one layer of each run only those
    compared = range(len(shared.widths)) if layer is None else indices
    all_cka = linear_cka(shared.read_parts, shared.widths, compared, compared)
    cka = all_cka[np.ix_(indices, indices)] if layer is None else all_cka
    labels = [shared.labels[run][index] for run, index in enumerate(selected)]
    description = "last layers" if layer is None else f"layer {layer}" if layer else "inputs"

    def figure(layers: str, values: np.ndarray, rows: Sequence[str]) -> Figure:
        title = f"Similarity of models, {layers}: {shared.side}"
        return Figure(title, similarity_matrix(values.clip(0, 1), rows=rows, columns=names, name="linear CKA", title=title))

    rows = [f"{name}, {label}" for name, label in zip(names, labels, strict=True)]
    lines = [f"{shared.side}: {pluralize(shared.num_words, unit[:-1])}", *_table(description, cka, rows, names)]
    # no spaces in the labels of a figure, which would be drawn as visible marks
    figure_rows = [f"{name}:{label.rpartition(' ')[2]}" for name, label in zip(names, labels, strict=True)]
    figures = [figure(description, cka, figure_rows)]
    data = {"side": shared.side, "words": shared.num_words, "layers": labels, "cka": cka.tolist()}
    if layer is None:
        best = _best_layers(shared, all_cka)
        lines += ["", *_table("best layers", best.cka, names, names), "", *_most_similar(best, names, top)]
        figures.append(figure("best layers", best.cka, names))
        data["best"] = {"cka": best.cka.tolist(), "layers": [[list(pair) for pair in row] for row in best.layers]}
        data["all"] = {"layers": shared.labels, "cka": all_cka.tolist()}
    return SideOutput([*lines, *sample_warning(shared, unit)], figures, data)


def model_similarity(
    runs: Sequence[AnyRun],
    data: Files | None = None,
    *,
    layer: int | None = None,
    max_words: int = MAX_WORDS,
    top: int = 5,
    progress: ProgressCallback | None = None,
) -> Explanation:
    """Linear CKA of each pair of runs on the same text: of `layer` of each (0 is the input), or by default of their last
    layers and of their most similar layers."""
    paths = [str(run.directory.path) for run in runs]
    if len(runs) < 2:
        raise UsageError("similarity", f"requires at least two runs, got {len(runs)}")
    unit, shared_sides = shared_vectors(runs, data, max_words=max_words, progress=progress)
    sides = [_compare_side(shared, paths, unit, layer, top) for shared in shared_sides]
    return Explanation(
        "models",
        f"Models {', '.join(paths)}",
        {"unit": unit, "runs": paths, "sides": [side.data for side in sides]},
        [figure for side in sides for figure in side.figures],
        [line for i, side in enumerate(sides) for line in ([""] if i else []) + side.lines],
        guides.MODELS,
    )
