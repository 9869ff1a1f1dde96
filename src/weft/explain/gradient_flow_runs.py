"""How far the losses of several runs reach back, in one plot: a line a run, dashed at the start of training, solid after it."""

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
    "steps back: the gradient of the loss, as a share of what arrives one step back",
    "lowest: what arrives below all layers, as a share of what arrives above them",
)


def _check(runs: Mapping[str, AnyRun]) -> None:
    """Refuse runs that have no gradients, or none that can be held beside each other."""
    first, other = next(iter(runs.items()))
    for name, run in runs.items():
        if reason := why_no_gradients(run):
            raise UsageError("--compare-with", f"{name}: {reason}")
        if not explaining(run).stepwise:
            raise UsageError(
                "--compare-with",
                f"{name} is of task {run.config.task!r}, whose losses have no steps back",
                "drop --compare-with",
            )
        if run.task is not other.task:
            raise UsageError(
                "--compare-with",
                f"{name} is of task {run.config.task!r}, {first} of {other.config.task!r}",
                "give runs of one task",
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
        Figure("Through time", time_figure(flows, title="Gradients through time")),
        Figure("Through the layers", depth_figure(depths, title="Gradients through the layers")),
    ]
    return Explanation("gradients", "Where the losses of several runs reach", data, pictures, _lines(found), guides.GRADIENTS)
