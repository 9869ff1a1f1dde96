"""The attribution view: the contribution of each input token to an output, in nats, signed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from weft.errors import UsageError
from weft.explain import guides
from weft.explain.attribution_methods import COMPLETE, attribute, completeness_error
from weft.explain.explanation import TRUNCATED, Explanation, Figure, TokenSpan, align_columns, list_tokens, unique_labels
from weft.explain.inputs import ExplainedOutput, ModelInput, explaining, network, outputs_to_explain, read
from weft.explain.options import ExplainConfig
from weft.explain.progress import ProgressCallback, no_progress
from weft.explain.sparse_attribution import SparseAttribution
from weft.plots.diverging_heatmap import diverging_heatmap
from weft.plots.formatting import on_one_line
from weft.plots.heatmap import visible
from weft.plots.token_heatmap import token_heatmap
from weft.runs.run import AnyRun
from weft.text.reading import check_text

METHODS = {
    "input-x-gradient": "input x gradient",
    "integrated-gradients": "integrated gradients",
    "occlusion": "occlusion",
    "coefficients": "coefficients",
}
BASELINES = {
    "unk": "<unk> embedding",
    "mask": "[MASK] embedding",
    "mean": "mean embedding",
    "zero": "zero embedding",
}
BAR_CHARS = 20  # of the largest bar in a terminal
MAX_LINES = 40  # tokens in a terminal


class AttributionResult(NamedTuple):
    """The attributions and what data, figures and text are made of."""

    sides: list[tuple[str, list[TokenSpan]]]  # name and tokens of each input
    outputs: list[TokenSpan]  # K
    names: list[str]  # K, the explained outputs
    values: np.ndarray  # (K, N), of the sides one after another
    output: np.ndarray  # (K,): log-probabilities
    method: str
    baseline: str | None  # described
    steps: int | None = None
    added: np.ndarray | None = None  # (K,): what the values should sum to
    written: str = ""  # the whole output of seq2seq
    truncated: bool = False  # the text was too long

    def of_sides(self) -> list[np.ndarray]:
        """(K, N) of each side."""
        edges = np.cumsum([len(pieces) for _, pieces in self.sides])[:-1]
        return np.split(self.values, edges, axis=1)


def _name(question: ExplainedOutput, reading: ModelInput, *, places: bool) -> str:
    """The name of an output: the choice, for a tag with its word, for an answer with its end."""
    place = reading.places[question.place].text
    return f"{place}/{question.token.text}" if places else question.token.text


def _network_attribution(run: AnyRun, text: str, options: ExplainConfig, progress: ProgressCallback) -> AttributionResult:
    if options.method == "coefficients":
        raise UsageError("method", "coefficients is only available for linear models", "use integrated-gradients")
    reading = read(run, text, options)
    asked = outputs_to_explain(run, reading, options)
    found = attribute(run, reading, asked, options, progress)
    return AttributionResult(
        [(side.name, side.pieces) for side in reading.sides],
        [question.token for question in asked],
        [_name(question, reading, places=explaining(run).has_positions) for question in asked],
        found.values,
        found.output,
        found.method,
        None if found.baseline is None else BASELINES[found.baseline],
        found.steps,
        found.added,
        reading.written,
        reading.truncated,
    )


def _sparse_attribution(found: SparseAttribution) -> AttributionResult:
    name = "terms" if found.method == "coefficients" else "text"
    names = [piece.text for piece in found.outputs]
    sides = [(name, found.pieces)]
    return AttributionResult(
        sides, found.outputs, names, found.values, found.output, found.method, found.baseline, None, found.added
    )


def _find(run: AnyRun, text: str, options: ExplainConfig, progress: ProgressCallback) -> AttributionResult:
    if options.n_steps is not None and options.method not in (None, "integrated-gradients"):
        raise UsageError("n_steps", f"not used by method {options.method}", "remove it")
    if options.baseline is not None and options.method == "input-x-gradient":
        raise UsageError("baseline", "not used by method input-x-gradient", "remove it")
    count = explaining(run).attribute
    if count is not None and network(run) is None:
        return _sparse_attribution(count(run, check_text(text, "input"), options))
    return _network_attribution(run, text, options, progress)


def _describe_method(found: AttributionResult) -> str:
    """The method, its baseline and steps."""
    parts = [METHODS[found.method]]
    if found.baseline is not None:
        parts.append(f"baseline: {found.baseline}")
    if found.steps is not None:
        parts.append(f"{found.steps} steps")
    return ", ".join(parts)


def _completeness(found: AttributionResult) -> list[dict[str, float]]:
    """For each output: the sum of the values, what it should be, and the relative error."""
    if found.added is None:
        return []
    return [
        {"sum": float(row.sum()), "difference": float(added), "error": completeness_error(row, float(added))}
        for row, added in zip(found.values, found.added, strict=True)
    ]


def _data(found: AttributionResult) -> dict[str, Any]:
    outputs = [
        {**piece._asdict(), "name": name, "log_prob": float(log_prob), "probability": float(np.exp(log_prob))}
        for piece, name, log_prob in zip(found.outputs, found.names, found.output, strict=True)
    ]
    sides = [
        {"name": name, "tokens": list_tokens(pieces), "values": values.round(6).tolist()}
        for (name, pieces), values in zip(found.sides, found.of_sides(), strict=True)
    ]
    method = {"method": found.method, "baseline": found.baseline, "n_steps": found.steps, "completeness": _completeness(found)}
    return {"tokens": list_tokens(found.sides[0][1]), "outputs": outputs, "sides": sides, **method}


def _caption(found: AttributionResult, side: str) -> str:
    source = {"output": " of the previous output"}.get(side, f" of the {side}" if len(found.sides) > 1 else "")
    return f"Contributions{source} to each output"


def _figures(found: AttributionResult) -> list[Figure]:
    """A colored text for one output of one text, else a heatmap of outputs by tokens."""
    figures = []
    name = "contribution (nats)" if found.method != "coefficients" else "contribution (score)"
    maximum = float(np.abs(found.values).max()) or 1.0  # one scale for all sides
    for (side, pieces), values in zip(found.sides, found.of_sides(), strict=True):
        tokens = [piece.text for piece in pieces]
        if len(found.names) == 1 and len(found.sides) == 1:
            title = f"Contributions to {visible(found.names[0])}"
            figures.append(Figure(title, token_heatmap(tokens, values[0], name=name, title=title)))
            continue
        title, axes = _caption(found, side), ("output", side)
        drawn = diverging_heatmap(values, rows=found.names, columns=tokens, name=name, title=title, axes=axes, maximum=maximum)
        figures.append(Figure(title, drawn))
    return figures


def _named(found: AttributionResult, *, apart: bool = True) -> list[str]:
    """The label of each token: output tokens have a prefix; equal tokens get a position if `apart`."""
    say = unique_labels if apart else lambda pieces: [visible(piece.text) for piece in pieces]
    marks = [f"{name}:" if at else "" for at, (name, _) in enumerate(found.sides)]
    return [mark + name for mark, (_, pieces) in zip(marks, found.sides, strict=True) for name in say(pieces)]


def _one(found: AttributionResult, top: int) -> list[str]:
    """A line per token with a bar; for long texts the largest contributions, for outputs only nonzero ones."""
    values, read = found.values[0], len(found.sides[0][1])
    maximum = float(np.abs(values).max()) or 1.0
    shown = [at for at, value in enumerate(values.tolist()) if value or at < read]
    names = _named(found, apart=False)  # their order tells them apart
    if len(shown) > MAX_LINES:
        limit = np.argsort(-np.abs(values), kind="stable")[: max(MAX_LINES, top)].tolist()
        shown, names = sorted(at for at in limit if values[at]), _named(found)
    rows = [("value", "", "token")]
    for at in shown:
        bar = ("+" if values[at] > 0 else "-") * round(BAR_CHARS * abs(values[at]) / maximum)
        rows.append((f"{values[at]:+.4f}", bar, names[at]))
    return align_columns(rows, left=(1, 2))


def _several(found: AttributionResult, top: int) -> list[str]:
    """A line per output with the tokens of the largest contributions."""
    tokens, rows = _named(found), [("output", "probability", "strongest")]
    for name, log_prob, row in zip(found.names, found.output, found.values, strict=True):
        best = [at for at in np.argsort(-np.abs(row), kind="stable")[:top].tolist() if row[at]]
        rows.append((visible(name), f"{np.exp(log_prob):.3f}", "  ".join(f"{tokens[at]} {row[at]:+.2f}" for at in best)))
    return align_columns(rows, left=(0, 2))


def _lines(found: AttributionResult, top: int) -> list[str]:
    several = len(found.names) > 1
    lines = _several(found, top) if several else _one(found, top)
    if not several:
        lines.insert(0, f"{visible(found.names[0])}: probability {np.exp(found.output[0]):.4g}")
    lines += [_describe_method(found), *([TRUNCATED] if found.truncated else [])]
    worst: Sequence[float] = [one["error"] for one in _completeness(found)]
    if worst and max(worst) > COMPLETE:
        lines.append(f"warning: the contributions miss their sum by {100 * max(worst):.1f}%; increase `n_steps`")
    elif worst and found.method == "integrated-gradients":
        lines.append(f"completeness error: {100 * max(worst):.2f}%")
    return lines


def attribution(run: AnyRun, text: str, options: ExplainConfig, progress: ProgressCallback = no_progress) -> Explanation:
    """The contribution of each token to the next token, label, tag, mask prediction or seq2seq output."""
    found = _find(run, text, options, progress)
    output = f" for the output {on_one_line(found.written)}" if found.written else ""
    title = f"Attribution of {run.directory.path}{output}: {_describe_method(found)}"
    return Explanation("attribution", title, _data(found), _figures(found), _lines(found, options.top), guides.ATTRIBUTION)
