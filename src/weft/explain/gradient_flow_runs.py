"""Gradient flow of several runs in one plot: one line per run, dashed before training, solid after it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from weft.errors import UsageError
from weft.explain import guides
from weft.explain.explanation import Explanation, Figure, align_columns
from weft.explain.gradient_flow import (
    GradientFlow,
    depth_figure,
    measure_gradient_flow,
    relative_norms,
    time_figure,
    why_no_gradients,
)
from weft.explain.inputs import explaining
from weft.explain.options import ExplainConfig
from weft.explain.progress import ProgressCallback, item_progress, no_progress
from weft.runs.run import AnyRun

TOLD = (10, 100)  # steps back that a terminal is told of
NOTES = (
    "steps back: gradient norm relative to one step back",
    "lowest: gradient norm below the first layer relative to that above the last",
)


def _check(runs: Mapping[str, AnyRun]) -> None:
    """Refuse runs that have no gradients, or none that can be held beside each other."""
    first, other = next(iter(runs.items()))
    for name, run in runs.items():
        if reason := why_no_gradients(run):
            raise UsageError("compare_with", f"{name}: {reason}")
        if not explaining(run).is_recurrent:
            raise UsageError(
                "compare_with",
                f"not available for task {run.config.task!r} ({name})",
                "remove it",
            )
        if run.spec is not other.spec:
            raise UsageError(
                "compare_with",
                f"{first} ({other.config.task}) and {name} ({run.config.task}) have different tasks",
            )


def _cells(found: GradientFlow, when: str, steps: Sequence[int]) -> Iterator[str]:
    fractions, norms = relative_norms(found.flows[when]), found.depths[when].norms
    for step in steps:
        yield f"{fractions[step - 1]:.2g}" if step <= len(fractions) else "-"
    yield f"{norms[0] / norms[-1]:.2g}" if norms[-1] else "-"


def _lines(found: Mapping[str, GradientFlow]) -> list[str]:
    """What is left of the gradients of each run, for a terminal."""
    far = max(flow.norms.shape[1] - 1 for one in found.values() for flow in one.flows.values())
    steps = [step for step in TOLD if step <= far] or [far]
    head = ["run", "weights", *(f"{step} steps back" for step in steps), "lowest"]
    rows = [[name, when, *_cells(one, when, steps)] for name, one in found.items() for when in one.flows]
    return [*align_columns([head, *rows], left=(0, 1)), *NOTES]


def compare_gradient_flow(
    runs: Mapping[str, AnyRun], text: str, options: ExplainConfig, progress: ProgressCallback = no_progress
) -> Explanation:
    """`gradients` of several runs, by name, each of the text as its own tokenizer cuts it."""
    _check(runs)
    found = {
        name: measure_gradient_flow(run, text, options, item_progress(progress, at, len(runs), "runs"))
        for at, (name, run) in enumerate(runs.items())
    }
    flows = {name: one.flows for name, one in found.items()}
    depths = {name: one.depths for name, one in found.items()}
    data = {"runs": [{"name": name, "arch": runs[name].config.arch, **one.to_json()} for name, one in found.items()]}
    pictures = [
        Figure("Gradient norm over time", time_figure(flows, title="Gradient norm over time")),
        Figure("Gradient norm by layer", depth_figure(depths, title="Gradient norm by layer")),
    ]
    return Explanation("gradient-flow", "Gradient flow of several runs", data, pictures, _lines(found), guides.GRADIENTS)
