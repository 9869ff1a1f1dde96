"""Maps the vectors of one language to those of another.

Words are rows: X (n, D) and Y (n, D) are the vectors of n pairs of translations. The orthogonal Procrustes problem

    min over R with R R^T = I of ||X R - Y||^2

has the solution R = U V^T, where U S V^T is the singular value decomposition of X^T Y (Schönemann 1966). It maximizes
<R, X^T Y>. Texts that maximize <R, Y^T X> instead take the decomposition of Y^T X, whose U V^T is the transpose: it maps Y
to X, or X as columns.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from weft.vectors.rows import Floats
from weft.vectors.word_vectors import unit_rows

Matrix = NDArray[np.float64]
METHODS = ("procrustes", "least-squares")


def normalize(vectors: Floats) -> Floats:
    """(V, D): unit length, centered, unit length (Artetxe et al. 2016)."""
    units = unit_rows(vectors)
    return unit_rows(units - units.mean(0))


def procrustes(x: Floats, y: Floats) -> Matrix:
    """(D, D): the rotation R, possibly with a reflection, that minimizes ||X R - Y||."""
    u, _, vt = np.linalg.svd(x.T.astype(np.float64) @ y)
    rotation: Matrix = u @ vt
    return rotation


def least_squares(x: Floats, y: Floats) -> Matrix:
    """(D, D): the matrix W that minimizes ||X W - Y||, without a constraint (Mikolov et al. 2013)."""
    solution: Matrix = np.linalg.lstsq(x.astype(np.float64), y.astype(np.float64), rcond=None)[0]
    return solution


def fit_mapping(x: Floats, y: Floats, method: str) -> Matrix:
    return procrustes(x, y) if method == "procrustes" else least_squares(x, y)


def apply_mapping(vectors: Floats, mapping: Matrix) -> Floats:
    """(V, D): the mapped vectors, with unit length."""
    return unit_rows(np.asarray(vectors @ mapping, np.float32))
