"""Gradient flow of several runs in one plot: one line per run, dashed before training, solid after it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from weft.errors import UsageError
from weft.explain import guides
from weft.explain.explanation import Explanation, Figure, align_columns
from weft.explain.gradient_flow import (
    VIEW,
    GradientFlow,
    layer_figure,
    measure_gradient_flow,
    relative_norms,
    time_figure,
    why_no_gradients,
)
from weft.explain.inputs import explain_spec
from weft.explain.options import ExplainConfig
from weft.explain.progress import ProgressCallback, item_progress, no_progress
from weft.runs.run import AnyRun

TABLE_STEPS = (10, 100)  # steps back in the table
NOTES = (
    "steps back: gradient norm relative to one step back",
    "lowest: gradient norm below the first layer relative to that above the last",
)


def _check(runs: Mapping[str, AnyRun]) -> None:
    """Raise if a run has no gradients over time, or if the runs have different tasks."""
    first_name, first = next(iter(runs.items()))
    for name, run in runs.items():
        if reason := why_no_gradients(run):
            raise UsageError("compare_with", f"{name}: {reason}")
        if not explain_spec(run).is_recurrent:
            raise UsageError("compare_with", f"not available for task {run.config.task!r} ({name})", "remove it")
        if run.spec is not first.spec:
            raise UsageError(
                "compare_with", f"{first_name} ({first.config.task}) and {name} ({run.config.task}) have different tasks"
            )


def _cells(flow: GradientFlow, weights: str, steps: Sequence[int]) -> Iterator[str]:
    over_time, by_layer = relative_norms(flow.over_time[weights]), flow.by_layer[weights].norms
    for step in steps:
        yield f"{over_time[step - 1]:.2g}" if step <= len(over_time) else "-"
    yield f"{by_layer[0] / by_layer[-1]:.2g}" if by_layer[-1] else "-"


def _table(flows: Mapping[str, GradientFlow]) -> list[str]:
    """A row per run and weights, untrained or trained."""
    max_steps = max(gradients.norms.shape[1] - 1 for flow in flows.values() for gradients in flow.over_time.values())
    steps = [step for step in TABLE_STEPS if step <= max_steps] or [max_steps]
    header = ["run", "weights", *(f"{step} steps back" for step in steps), "lowest"]
    rows = [[name, weights, *_cells(flow, weights, steps)] for name, flow in flows.items() for weights in flow.over_time]
    return [*align_columns([header, *rows], left=(0, 1)), *NOTES]


def compare_gradient_flow(
    runs: Mapping[str, AnyRun], text: str, options: ExplainConfig, progress: ProgressCallback = no_progress
) -> Explanation:
    """`gradient_flow` of several runs by name. Each run tokenizes the text with its own tokenizer."""
    _check(runs)
    flows = {
        name: measure_gradient_flow(run, text, options, item_progress(progress, i, len(runs), "runs"))
        for i, (name, run) in enumerate(runs.items())
    }
    over_time = {name: flow.over_time for name, flow in flows.items()}
    by_layer = {name: flow.by_layer for name, flow in flows.items()}
    data = {"runs": [{"name": name, "arch": runs[name].config.arch, **flow.to_json()} for name, flow in flows.items()]}
    figures = [
        Figure("Gradient norm over time", time_figure(over_time, title="Gradient norm over time")),
        Figure("Gradient norm by layer", layer_figure(by_layer, title="Gradient norm by layer")),
    ]
    return Explanation(VIEW, "Gradient flow of several runs", data, figures, _table(flows), guides.GRADIENTS)
