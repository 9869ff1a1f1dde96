"""Do several runs say the same? A matrix of linear CKA between them: of one layer of each, and of the two layers of each two
that are most alike. All runs read the same pieces of text, short enough for each of them.

Shapes: R runs, L layers of all of them together.
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


class Best(NamedTuple):
    """Of each two runs the layers that are most alike."""

    cka: np.ndarray  # (R, R)
    layers: list[list[tuple[str, str]]]  # R times R: that of the row, that of the column


def short_names(paths: Sequence[str]) -> list[str]:
    """Short names of runs: the last part of each path, or the whole path if two have the same last part."""
    names = [path.rstrip("/").rpartition("/")[2] or path for path in paths]
    return [name if names.count(name) == 1 else path for name, path in zip(names, paths, strict=True)]


def _chosen(one: SharedVectors, paths: Sequence[str], layer: int | None) -> list[int]:
    """The number, within its run, of the layer of each run: the one that was asked for, or the last."""
    if layer is None:
        return [len(labels) - 1 for labels in one.labels]
    for path, labels in zip(paths, one.labels, strict=True):
        layers = sum(label.rpartition(" ")[2].isdigit() for label in labels)
        if not 0 <= layer <= layers:
            raise UsageError("layer", f"must be from 0 (the input) to {layers} for {path}, got {layer}")
    return [layer] * len(paths)


def _best(one: SharedVectors, cka: np.ndarray) -> Best:
    """Of the CKA of all layers (L, L)."""
    runs = range(len(one.labels))
    found, layers = np.zeros((len(runs), len(runs))), [[("", "") for _ in runs] for _ in runs]
    for row, column in product(runs, runs):
        block = cka[np.ix_(one.numbers(row), one.numbers(column))]
        if row == column:  # the highest layer stands for all: each is like itself
            down = across = len(block) - 1
        else:
            down, across = (int(at) for at in np.unravel_index(block.argmax(), block.shape))
        found[row, column] = block[down, across]
        layers[row][column] = (one.labels[row][down], one.labels[column][across])
    return Best(found, layers)


def _table(corner: str, cka: np.ndarray, rows: Sequence[str], columns: Sequence[str]) -> list[str]:
    body = [[name, *(f"{value:.2f}" for value in row)] for name, row in zip(rows, cka, strict=True)]
    return align_columns([[corner, *columns], *body])


def _nearest(best: Best, names: Sequence[str], top: int) -> list[str]:
    """The runs that are nearest to each other, and in which layers."""
    pairs = sorted(combinations(range(len(names)), 2), key=lambda pair: -best.cka[pair])
    rows: list[Sequence[str]] = [("runs most alike", "", "CKA")]
    for one, two in pairs[:top]:
        first, second = best.layers[one][two]
        rows.append((f"{names[one]}, {first}", f"{names[two]}, {second}", f"{best.cka[one, two]:.2f}"))
    return align_columns(rows, left=(0, 1))


class SimilarityOutput(NamedTuple):
    """One side of the runs in words, pictures and numbers."""

    lines: list[str]
    pictures: list[Figure]
    data: dict[str, Any]


def _drawn(one: SharedVectors, paths: Sequence[str], unit: str, layer: int | None, top: int) -> SimilarityOutput:
    names, at = short_names(paths), _chosen(one, paths, layer)
    numbers = [one.numbers(run)[place] for run, place in enumerate(at)]
    wanted = range(len(one.widths)) if layer is None else numbers
    cka = linear_cka(one.parts, one.widths, wanted, wanted)
    own = cka[np.ix_(numbers, numbers)] if layer is None else cka
    labels = [one.labels[run][place] for run, place in enumerate(at)]
    which = "last layers" if layer is None else f"layer {layer}" if layer else "inputs"

    def picture(what: str, values: np.ndarray, rows: Sequence[str]) -> Figure:
        what = f"How alike models are, {what}: {one.side}"
        return Figure(what, similarity_matrix(values.clip(0, 1), rows=rows, columns=names, name="linear CKA", title=what))

    rows = [f"{name}, {label}" for name, label in zip(names, labels, strict=True)]
    lines = [f"{one.side}: {pluralize(one.words, unit[:-1])}", *_table(which, own, rows, names)]
    # a picture shows a space as a mark
    pictures = [picture(which, own, [f"{name}:{label.rpartition(' ')[2]}" for name, label in zip(names, labels, strict=True)])]
    data = {"side": one.side, "words": one.words, "layers": labels, "cka": own.tolist()}
    if layer is None:
        best = _best(one, cka)
        lines += ["", *_table("best layers", best.cka, names, names), "", *_nearest(best, names, top)]
        pictures.append(picture("best layers", best.cka, names))
        data["best"] = {"cka": best.cka.tolist(), "layers": [[list(pair) for pair in row] for row in best.layers]}
        data["all"] = {"layers": one.labels, "cka": cka.tolist()}
    return SimilarityOutput([*lines, *sample_warning(one, unit)], pictures, data)


def model_similarity(
    runs: Sequence[AnyRun],
    data: Files | None = None,
    *,
    layer: int | None = None,
    max_words: int = MAX_WORDS,
    top: int = 5,
    progress: ProgressCallback | None = None,
) -> Explanation:
    """Every run beside every other on the same text: by `layer` of each, 0 the input; or by their last layers, and by the
    layers of each two that are most alike."""
    paths = [str(one.directory.path) for one in runs]
    if len(runs) < 2:
        raise UsageError("similarity", f"requires at least two runs, got {len(runs)}")
    unit, found = shared_vectors(runs, data, max_words=max_words, progress=progress)
    drawn = [_drawn(one, paths, unit, layer, top) for one in found]
    said = [line for number, one in enumerate(drawn) for line in ([""] if number else []) + one.lines]
    values = {"unit": unit, "runs": paths, "sides": [one.data for one in drawn]}
    return Explanation(
        "models",
        f"Models {', '.join(paths)}",
        values,
        [picture for one in drawn for picture in one.pictures],
        said,
        guides.MODELS,
    )
