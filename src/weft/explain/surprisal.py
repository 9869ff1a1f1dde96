"""Surprisal: the negative log-probability of each token of a text.

Shapes: T tokens, V words.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from weft.errors import UsageError
from weft.explain import guides
from weft.explain.explanation import Explanation, Figure, TokenSpan, align_columns, list_tokens
from weft.explain.inputs import explaining
from weft.explain.options import ExplainConfig
from weft.plots.lines import Axis, Series, lines
from weft.plots.token_heatmap import token_heatmap
from weft.runs.run import AnyRun
from weft.text.reading import check_text, pluralize

BITS = 1 / math.log(2)


class SurprisalResult(NamedTuple):
    pieces: list[TokenSpan]
    surprisals: np.ndarray  # (T,)
    context: str  # what each token was predicted from


def why_no_surprisal(run: AnyRun) -> str | None:
    """Why surprisal is not available, or None."""
    return None if explaining(run).surprisal else f"task {run.config.task!r} does not predict tokens"


def compute_surprisal(run: AnyRun, text: str, options: ExplainConfig) -> SurprisalResult:
    """The surprisal of each token of a text."""
    measure = explaining(run).surprisal
    if measure is None:
        raise UsageError("view", f"surprisal is not available: {why_no_surprisal(run)}")
    return measure(run, check_text(text, "input"), options)


def _pictures(found: SurprisalResult, bits: np.ndarray) -> list[Figure]:
    tokens, finite = [piece.text for piece in found.pieces], np.where(np.isfinite(bits), bits, np.nan)
    ceiling = float(np.nanmax(finite)) if np.isfinite(bits).any() else 1.0
    shown = np.where(np.isfinite(bits), bits, ceiling)  # tokens of probability 0 are as dark as the most surprising one
    line = Series("", list(range(1, len(tokens) + 1)), finite.tolist(), labels=tokens)
    return [
        Figure("Surprisal of each token", token_heatmap(tokens, shown, name="surprisal (bits)")),
        Figure(
            "Surprisal by position",
            lines([line], x_axis=Axis("token", names=["", *tokens], show_all=True), y_axis=Axis("surprisal (bits)")),
        ),
    ]


def _lines(found: SurprisalResult, bits: np.ndarray, top: int) -> list[str]:
    order = np.argsort(-bits, kind="stable")[:top]
    rows = [["token", "position", "bits", "probability"]]
    rows += [[repr(found.pieces[at].text), str(at + 1), f"{bits[at]:.2f}", f"{2 ** -bits[at]:.3g}"] for at in order.tolist()]
    mean = bits.mean()
    return [
        f"{pluralize(len(bits), 'token')}, {bits.sum():.2f} bits, {mean:.3f} bits per token (perplexity {2**mean:.3g})",
        "highest surprisal:",
        *align_columns(rows),
    ]


def surprisal(run: AnyRun, text: str, options: ExplainConfig) -> Explanation:
    """The surprisal of every token of a text; for seq2seq, of the target."""
    found = compute_surprisal(run, text, options)
    bits = found.surprisals * BITS
    data = {
        "tokens": list_tokens(found.pieces),
        "context": found.context,
        "nats": [value if math.isfinite(value) else None for value in found.surprisals.tolist()],
        "bits": [value if math.isfinite(value) else None for value in bits.tolist()],
    }
    title = f"Surprisal given {found.context}"
    return Explanation("surprisal", title, data, _pictures(found, bits), _lines(found, bits, options.top), guides.SURPRISAL)
