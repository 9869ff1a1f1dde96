"""Two dimensions for word vectors: PCA, or t-SNE and UMAP if their packages are installed."""

from __future__ import annotations

from importlib import import_module

import numpy as np
from numpy.typing import NDArray

from weft.errors import UsageError, unknown_name
from weft.vectors.rows import Floats
from weft.vectors.word_vectors import unit_rows

METHODS = ("pca", "tsne", "umap")
PACKAGES = {"tsne": "scikit-learn", "umap": "umap-learn"}


def pca(vectors: Floats) -> NDArray[np.float64]:
    """(N, 2): the first two principal components; the largest coordinate of each is positive."""
    centered = vectors.astype(np.float64) - vectors.mean(0)
    u, s, _ = np.linalg.svd(centered, full_matrices=False)
    points = np.zeros((len(vectors), 2))
    points[:, : min(2, len(s))] = (u * s)[:, :2]
    largest = np.take_along_axis(points, np.abs(points).argmax(0)[None], 0)
    return np.asarray(points * np.where(largest < 0, -1.0, 1.0))


def layout(vectors: Floats, method: str, *, seed: int = 0) -> NDArray[np.float64]:
    """(N, 2): a point for each vector, by the cosines between them."""
    if method not in METHODS:
        raise UsageError("method", *unknown_name("method", method, METHODS))
    units = unit_rows(vectors)
    if method == "pca":
        return pca(units)
    try:
        if method == "tsne":
            perplexity = min(30.0, max(1.0, (len(units) - 1) / 3))
            model = import_module("sklearn.manifold").TSNE(perplexity=perplexity, random_state=seed, init="pca")
        else:
            model = import_module("umap").UMAP(metric="cosine", random_state=seed)
    except ImportError:
        package = PACKAGES[method]
        raise UsageError("method", f"{method!r} needs the package {package}", f"pip install {package}, or use 'pca'") from None
    return np.asarray(model.fit_transform(units), np.float64)
