"""Attribution as a view: what each token of the input did for what the model says, in nats, signed."""

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
    "gradient": "gradient times input",
    "integrated": "integrated gradients",
    "occlusion": "occlusion",
    "exact": "exact contributions",
}
BASELINES = {
    "unk": "the vector of <unk>",
    "mask": "the vector of the mask",
    "mean": "the mean of all words' vectors",
    "zero": "zeros",
}
BAR = 20  # letters of the longest bar in a terminal
LONG = 40  # tokens that a terminal shows


class AttributionResult(NamedTuple):
    """All that data, pictures and lines are made of."""

    sides: list[tuple[str, list[TokenSpan]]]  # what was read, and what it is to a person
    outputs: list[TokenSpan]  # K
    names: list[str]  # K, what is asked, in a word or two
    values: np.ndarray  # (K, N), of the sides one after another
    output: np.ndarray  # (K,): log-probabilities
    method: str
    baseline: str | None  # in words
    steps: int | None = None
    added: np.ndarray | None = None  # (K,): what the values should add up to
    written: str = ""  # the whole output, where it is one
    truncated: bool = False  # the text was longer than the model reads

    def of_sides(self) -> list[np.ndarray]:
        """(K, N) of each side."""
        edges = np.cumsum([len(pieces) for _, pieces in self.sides])[:-1]
        return np.split(self.values, edges, axis=1)


def _name(question: ExplainedOutput, reading: ModelInput, *, places: bool) -> str:
    """What is asked: the choice, of a tag its word too, of an answer which end."""
    place = reading.places[question.place].text
    return f"{place}/{question.token.text}" if places else question.token.text


def _of_network(run: AnyRun, text: str, options: ExplainConfig, progress: ProgressCallback) -> AttributionResult:
    if options.method == "exact":
        raise UsageError("--method exact", "is for linear models of terms", "use --method integrated, gradient or occlusion")
    reading = read(run, text, options)
    asked = outputs_to_explain(run, reading, options)
    found = attribute(run, reading, asked, options, progress)
    return AttributionResult(
        [(side.name, side.pieces) for side in reading.sides],
        [question.token for question in asked],
        [_name(question, reading, places=explaining(run).places) for question in asked],
        found.values,
        found.output,
        found.method,
        None if found.baseline is None else BASELINES[found.baseline],
        found.steps,
        found.added,
        reading.written,
        reading.truncated,
    )


def _of_counts(found: SparseAttribution) -> AttributionResult:
    name = "terms" if found.method == "exact" else "text"
    names = [piece.text for piece in found.outputs]
    sides = [(name, found.pieces)]
    return AttributionResult(
        sides, found.outputs, names, found.values, found.output, found.method, found.baseline, None, found.added
    )


def _find(run: AnyRun, text: str, options: ExplainConfig, progress: ProgressCallback) -> AttributionResult:
    if options.n_steps is not None and options.method not in (None, "integrated"):
        raise UsageError("--n-steps", f"is for --method integrated, not for --method {options.method}", "drop it")
    if options.baseline is not None and options.method == "gradient":
        raise UsageError("--baseline", "the gradient times the input is against nothing", "drop it, or use --method integrated")
    count = explaining(run).attribute
    if count is not None and network(run) is None:
        return _of_counts(count(run, check_text(text, "input"), options))
    return _of_network(run, text, options, progress)


def _way(found: AttributionResult) -> str:
    """How it was found, in words."""
    parts = [METHODS[found.method]]
    if found.baseline is not None:
        parts.append(f"against {found.baseline}")
    if found.steps is not None:
        parts.append(f"{found.steps} steps")
    return ", ".join(parts)


def _completeness(found: AttributionResult) -> list[dict[str, float]]:
    """Of each question: what the values add up to, what they should, and by how much of it they miss it."""
    if found.added is None:
        return []
    return [
        {"sum": float(row.sum()), "difference": float(added), "error": completeness_error(row, float(added))}
        for row, added in zip(found.values, found.added, strict=True)
    ]


def _data(found: AttributionResult) -> dict[str, Any]:
    outputs = [
        {**piece._asdict(), "name": name, "log_prob": float(said), "probability": float(np.exp(said))}
        for piece, name, said in zip(found.outputs, found.names, found.output, strict=True)
    ]
    sides = [
        {"name": name, "tokens": list_tokens(pieces), "values": values.round(6).tolist()}
        for (name, pieces), values in zip(found.sides, found.of_sides(), strict=True)
    ]
    how = {"method": found.method, "baseline": found.baseline, "steps": found.steps, "completeness": _completeness(found)}
    return {"tokens": list_tokens(found.sides[0][1]), "outputs": outputs, "sides": sides, **how}


def _caption(found: AttributionResult, side: str) -> str:
    after = {"output": " from what it had written"}.get(side, f" from the {side}" if len(found.sides) > 1 else "")
    return f"What spoke for (+) and against (-) each output{after}"


def _pictures(found: AttributionResult) -> list[Figure]:
    """A coloured text where one thing is asked of one text, else a map of outputs by tokens."""
    pictures = []
    name = "nats of log-probability" if found.method != "exact" else "score"
    maximum = float(np.abs(found.values).max()) or 1.0  # one scale for all sides
    for (side, pieces), values in zip(found.sides, found.of_sides(), strict=True):
        tokens = [piece.text for piece in pieces]
        if len(found.names) == 1 and len(found.sides) == 1:
            what = f"What spoke for (+) and against (-) {visible(found.names[0])}"
            pictures.append(Figure(what, token_heatmap(tokens, values[0], name=name, title=what)))
            continue
        what, axes = _caption(found, side), ("output", side)
        drawn = diverging_heatmap(values, rows=found.names, columns=tokens, name=name, title=what, axes=axes, maximum=maximum)
        pictures.append(Figure(what, drawn))
    return pictures


def _named(found: AttributionResult, *, apart: bool = True) -> list[str]:
    """Every token as it is shown: what was written is told from what was read, and tokens that look alike `apart`."""
    say = unique_labels if apart else lambda pieces: [visible(piece.text) for piece in pieces]
    marks = [f"{name}:" if at else "" for at, (name, _) in enumerate(found.sides)]
    return [mark + name for mark, (_, pieces) in zip(marks, found.sides, strict=True) for name in say(pieces)]


def _one(found: AttributionResult, top: int) -> list[str]:
    """A line a token, with a bar; of a long text the tokens that did most, of an output only what did something."""
    values, read = found.values[0], len(found.sides[0][1])
    maximum = float(np.abs(values).max()) or 1.0
    shown = [at for at, value in enumerate(values.tolist()) if value or at < read]
    names = _named(found, apart=False)  # in their order they are told apart by it
    if len(shown) > LONG:
        limit = np.argsort(-np.abs(values), kind="stable")[: max(LONG, top)].tolist()
        shown, names = sorted(at for at in limit if values[at]), _named(found)
    rows = [("value", "", "token")]
    for at in shown:
        bar = ("+" if values[at] > 0 else "-") * round(BAR * abs(values[at]) / maximum)
        rows.append((f"{values[at]:+.4f}", bar, names[at]))
    return align_columns(rows, left=(1, 2))


def _several(found: AttributionResult, top: int) -> list[str]:
    """A line an output, with the tokens that did most."""
    tokens, rows = _named(found), [("output", "probability", "strongest")]
    for name, said, row in zip(found.names, found.output, found.values, strict=True):
        best = [at for at in np.argsort(-np.abs(row), kind="stable")[:top].tolist() if row[at]]
        rows.append((visible(name), f"{np.exp(said):.3f}", "  ".join(f"{tokens[at]} {row[at]:+.2f}" for at in best)))
    return align_columns(rows, left=(0, 2))


def _lines(found: AttributionResult, top: int) -> list[str]:
    several = len(found.names) > 1
    lines = _several(found, top) if several else _one(found, top)
    if not several:
        lines.insert(0, f"{visible(found.names[0])}: probability {np.exp(found.output[0]):.4g}")
    lines += [_way(found), *([TRUNCATED] if found.truncated else [])]
    worst: Sequence[float] = [one["error"] for one in _completeness(found)]
    if worst and max(worst) > COMPLETE:
        lines.append(f"not complete: they miss what they should add up to by {100 * max(worst):.1f} %; give more --n-steps")
    elif worst and found.method == "integrated":
        lines.append(f"complete: they add up to what they should within {100 * max(worst):.2f} %")
    return lines


def attribution(run: AnyRun, text: str, options: ExplainConfig, progress: ProgressCallback = no_progress) -> Explanation:
    """The share of each token in the next token, label, tag, filled gap or translation."""
    found = _find(run, text, options, progress)
    what = f"of {on_one_line(found.written)} " if found.written else ""
    title = f"Attribution {what}in {run.directory.path}: {_way(found)}"
    return Explanation("attribution", title, _data(found), _pictures(found), _lines(found, options.top), guides.ATTRIBUTION)
