"""The attribution view: the signed contribution of each input token to an output, in nats.

Shapes: K outputs, N tokens of all inputs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from weft.errors import UsageError
from weft.explain import guides
from weft.explain.attribution_methods import MAX_COMPLETENESS_ERROR, attribute, completeness_error
from weft.explain.explanation import TRUNCATED, Explanation, Figure, TokenSpan, align_columns, list_tokens, unique_labels
from weft.explain.inputs import ExplainedOutput, ModelInput, explain_spec, network, outputs_to_explain, read
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
BAR_CHARS = 20  # length of the longest bar in a terminal
MAX_LINES = 40  # tokens listed in a terminal


class AttributionResult(NamedTuple):
    """Attributions with the tokens and outputs they belong to."""

    sides: list[tuple[str, list[TokenSpan]]]  # name and tokens of each input
    outputs: list[TokenSpan]  # K
    names: list[str]  # K, the explained outputs as displayed
    values: np.ndarray  # (K, N), all sides concatenated
    log_probs: np.ndarray  # (K,): of the outputs
    method: str
    baseline: str | None  # as displayed
    steps: int | None = None
    expected_sum: np.ndarray | None = None  # (K,): the exact sum of the values, if the method has one
    output_text: str = ""  # the complete seq2seq output
    truncated: bool = False  # the text was too long for the model

    def values_by_side(self) -> list[np.ndarray]:
        """The columns of `values` that belong to each side."""
        boundaries = np.cumsum([len(spans) for _, spans in self.sides])[:-1]
        return np.split(self.values, boundaries, axis=1)


def _output_name(output: ExplainedOutput, model_input: ModelInput, *, with_position: bool) -> str:
    """The predicted token or label; a tag is prefixed by its word, the end of an answer by "start" or "end"."""
    position = model_input.output_spans[output.position].text
    return f"{position}/{output.span.text}" if with_position else output.span.text


def _attribute_network(run: AnyRun, text: str, options: ExplainConfig, progress: ProgressCallback) -> AttributionResult:
    if options.method == "coefficients":
        raise UsageError("method", "coefficients is only available for linear models", "use integrated-gradients")
    model_input = read(run, text, options)
    outputs = outputs_to_explain(run, model_input, options)
    result = attribute(run, model_input, outputs, options, progress)
    return AttributionResult(
        [(side.name, side.spans) for side in model_input.sides],
        [output.span for output in outputs],
        [_output_name(output, model_input, with_position=explain_spec(run).has_positions) for output in outputs],
        result.values,
        result.log_probs,
        result.method,
        None if result.baseline is None else BASELINES[result.baseline],
        result.steps,
        result.expected_sum,
        model_input.output_text,
        model_input.truncated,
    )


def _from_sparse(sparse: SparseAttribution) -> AttributionResult:
    return AttributionResult(
        [("terms" if sparse.method == "coefficients" else "text", sparse.spans)],
        sparse.outputs,
        [span.text for span in sparse.outputs],
        sparse.values,
        sparse.log_probs,
        sparse.method,
        sparse.baseline,
        expected_sum=sparse.expected_sum,
    )


def _attribute(run: AnyRun, text: str, options: ExplainConfig, progress: ProgressCallback) -> AttributionResult:
    if options.n_steps is not None and options.method not in (None, "integrated-gradients"):
        raise UsageError("n_steps", f"not used by method {options.method}", "remove it")
    if options.baseline is not None and options.method == "input-x-gradient":
        raise UsageError("baseline", "not used by method input-x-gradient", "remove it")
    attribute_sparse = explain_spec(run).attribute
    if attribute_sparse is not None and network(run) is None:
        return _from_sparse(attribute_sparse(run, check_text(text, "input"), options))
    return _attribute_network(run, text, options, progress)


def _describe_method(result: AttributionResult) -> str:
    """The method, its baseline and number of steps."""
    parts = [METHODS[result.method]]
    if result.baseline is not None:
        parts.append(f"baseline: {result.baseline}")
    if result.steps is not None:
        parts.append(f"{result.steps} steps")
    return ", ".join(parts)


def _completeness(result: AttributionResult) -> list[dict[str, float]]:
    """For each output: the sum of the values, the expected sum, and the relative error."""
    if result.expected_sum is None:
        return []
    return [
        {"sum": float(row.sum()), "difference": float(expected), "error": completeness_error(row, float(expected))}
        for row, expected in zip(result.values, result.expected_sum, strict=True)
    ]


def _data(result: AttributionResult) -> dict[str, Any]:
    outputs = [
        {**span._asdict(), "name": name, "log_prob": float(log_prob), "probability": float(np.exp(log_prob))}
        for span, name, log_prob in zip(result.outputs, result.names, result.log_probs, strict=True)
    ]
    sides = [
        {"name": name, "tokens": list_tokens(spans), "values": values.round(6).tolist()}
        for (name, spans), values in zip(result.sides, result.values_by_side(), strict=True)
    ]
    return {
        "tokens": list_tokens(result.sides[0][1]),
        "outputs": outputs,
        "sides": sides,
        "method": result.method,
        "baseline": result.baseline,
        "n_steps": result.steps,
        "completeness": _completeness(result),
    }


def _caption(result: AttributionResult, side: str) -> str:
    source = {"output": " of the previous output"}.get(side, f" of the {side}" if len(result.sides) > 1 else "")
    return f"Contributions{source} to each output"


def _figures(result: AttributionResult) -> list[Figure]:
    """A colored text for one output of one text, else a heatmap of outputs by tokens for each side."""
    figures = []
    name = "contribution (nats)" if result.method != "coefficients" else "contribution (score)"
    maximum = float(np.abs(result.values).max()) or 1.0  # one scale for all sides
    for (side, spans), values in zip(result.sides, result.values_by_side(), strict=True):
        tokens = [span.text for span in spans]
        if len(result.names) == 1 and len(result.sides) == 1:
            title = f"Contributions to {visible(result.names[0])}"
            figures.append(Figure(title, token_heatmap(tokens, values[0], name=name, title=title)))
            continue
        title, axes = _caption(result, side), ("output", side)
        svg = diverging_heatmap(values, rows=result.names, columns=tokens, name=name, title=title, axes=axes, maximum=maximum)
        figures.append(Figure(title, svg))
    return figures


def _token_labels(result: AttributionResult, *, unique: bool = True) -> list[str]:
    """The labels of the N tokens. Tokens of the second side are prefixed by its name; `unique` numbers equal tokens."""
    to_labels = unique_labels if unique else lambda spans: [visible(span.text) for span in spans]
    prefixes = [f"{name}:" if i else "" for i, (name, _) in enumerate(result.sides)]
    return [prefix + label for prefix, (_, spans) in zip(prefixes, result.sides, strict=True) for label in to_labels(spans)]


def _token_table(result: AttributionResult, top: int) -> list[str]:
    """One output: a line with a bar per token. A long text is reduced to its largest contributions.

    Tokens of the second side are listed only if their contribution is not zero."""
    values, first_side_length = result.values[0], len(result.sides[0][1])
    maximum = float(np.abs(values).max()) or 1.0
    tokens = [i for i, value in enumerate(values.tolist()) if value or i < first_side_length]
    labels = _token_labels(result, unique=False)  # in reading order, equal tokens are distinguishable
    if len(tokens) > MAX_LINES:
        largest = np.argsort(-np.abs(values), kind="stable")[: max(MAX_LINES, top)].tolist()
        tokens, labels = sorted(i for i in largest if values[i]), _token_labels(result)
    rows = [("value", "", "token")]
    for i in tokens:
        bar = ("+" if values[i] > 0 else "-") * round(BAR_CHARS * abs(values[i]) / maximum)
        rows.append((f"{values[i]:+.4f}", bar, labels[i]))
    return align_columns(rows, left=(1, 2))


def _output_table(result: AttributionResult, top: int) -> list[str]:
    """Several outputs: a line per output with the tokens of the largest contributions."""
    labels, rows = _token_labels(result), [("output", "probability", "strongest")]
    for name, log_prob, values in zip(result.names, result.log_probs, result.values, strict=True):
        largest = [i for i in np.argsort(-np.abs(values), kind="stable")[:top].tolist() if values[i]]
        contributions = "  ".join(f"{labels[i]} {values[i]:+.2f}" for i in largest)
        rows.append((visible(name), f"{np.exp(log_prob):.3f}", contributions))
    return align_columns(rows, left=(0, 2))


def _lines(result: AttributionResult, top: int) -> list[str]:
    if len(result.names) > 1:
        lines = _output_table(result, top)
    else:
        lines = [f"{visible(result.names[0])}: probability {np.exp(result.log_probs[0]):.4g}", *_token_table(result, top)]
    lines += [_describe_method(result), *([TRUNCATED] if result.truncated else [])]
    error = max((output["error"] for output in _completeness(result)), default=None)
    if error is not None and error > MAX_COMPLETENESS_ERROR:
        lines.append(f"warning: the contributions miss their sum by {100 * error:.1f}%; increase `n_steps`")
    elif error is not None and result.method == "integrated-gradients":
        lines.append(f"completeness error: {100 * error:.2f}%")
    return lines


def attribution(run: AnyRun, text: str, options: ExplainConfig, progress: ProgressCallback = no_progress) -> Explanation:
    """The contribution of each token to the next token, label, tag, mask prediction or seq2seq output."""
    result = _attribute(run, text, options, progress)
    output = f" for the output {on_one_line(result.output_text)}" if result.output_text else ""
    title = f"Attribution of {run.directory.path}{output}: {_describe_method(result)}"
    return Explanation("attribution", title, _data(result), _figures(result), _lines(result, options.top), guides.ATTRIBUTION)
