"""Surprisal: the negative log-probability of each token of a text.

Shapes: T tokens.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from weft.errors import UsageError
from weft.explain import guides
from weft.explain.explanation import Explanation, Figure, TokenSpan, align_columns, list_tokens
from weft.explain.inputs import explain_spec
from weft.explain.options import ExplainConfig
from weft.plots.lines import Axis, Series, lines
from weft.plots.token_heatmap import token_heatmap
from weft.runs.run import AnyRun
from weft.text.reading import check_text, pluralize

BITS_PER_NAT = 1 / math.log(2)


class SurprisalResult(NamedTuple):
    spans: list[TokenSpan]  # T
    surprisals: np.ndarray  # (T,), in nats
    context: str  # description of the context that each token was predicted from


def why_no_surprisal(run: AnyRun) -> str | None:
    """Why surprisal is not available, or None."""
    return None if explain_spec(run).surprisal else f"task {run.config.task!r} does not predict tokens"


def compute_surprisal(run: AnyRun, text: str, options: ExplainConfig) -> SurprisalResult:
    """The surprisal of each token of a text; for seq2seq, of the target."""
    task_surprisal = explain_spec(run).surprisal
    if task_surprisal is None:
        raise UsageError("view", f"surprisal is not available: {why_no_surprisal(run)}")
    return task_surprisal(run, check_text(text, "input"), options)


def _figures(result: SurprisalResult, bits: np.ndarray) -> list[Figure]:
    tokens, is_finite = [span.text for span in result.spans], np.isfinite(bits)
    # a token of probability 0 has no point in the chart, and the color of the largest finite value
    finite = np.where(is_finite, bits, np.nan)
    maximum = float(np.nanmax(finite)) if is_finite.any() else 1.0
    line = Series("", list(range(1, len(tokens) + 1)), finite.tolist(), labels=tokens)
    chart = lines([line], x_axis=Axis("token", names=["", *tokens], show_all=True), y_axis=Axis("surprisal (bits)"))
    colored = token_heatmap(tokens, np.where(is_finite, bits, maximum), name="surprisal (bits)")
    return [Figure("Surprisal of each token", colored), Figure("Surprisal by position", chart)]


def _lines(result: SurprisalResult, bits: np.ndarray, top: int) -> list[str]:
    highest = np.argsort(-bits, kind="stable")[:top].tolist()
    rows = [["token", "position", "bits", "probability"]]
    rows += [[repr(result.spans[i].text), str(i + 1), f"{bits[i]:.2f}", f"{2 ** -bits[i]:.3g}"] for i in highest]
    mean = bits.mean()
    return [
        f"{pluralize(len(bits), 'token')}, {bits.sum():.2f} bits, {mean:.3f} bits per token (perplexity {2**mean:.3g})",
        "highest surprisal:",
        *align_columns(rows),
    ]


def _finite_or_none(values: np.ndarray) -> list[float | None]:
    """The values as JSON, which has no infinity."""
    return [value if math.isfinite(value) else None for value in values.tolist()]


def surprisal(run: AnyRun, text: str, options: ExplainConfig) -> Explanation:
    """The surprisal of every token of a text; for seq2seq, of the target."""
    result = compute_surprisal(run, text, options)
    bits = result.surprisals * BITS_PER_NAT
    data = {
        "tokens": list_tokens(result.spans),
        "context": result.context,
        "nats": _finite_or_none(result.surprisals),
        "bits": _finite_or_none(bits),
    }
    title = f"Surprisal given {result.context}"
    return Explanation("surprisal", title, data, _figures(result, bits), _lines(result, bits, options.top), guides.SURPRISAL)
