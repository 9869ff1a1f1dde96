"""How far the losses of several runs reach back, in one plot: a line a run, dashed at the start of training, solid after it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from weft.errors import UsageError
from weft.explain import guides
from weft.explain.flow import Measured, depth_picture, measured, no_gradients, relative, time_picture
from weft.explain.inputs import explaining
from weft.explain.options import ExplainOptions
from weft.explain.telling import Telling, one_of, untold
from weft.explain.view import Picture, View, aligned
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
        if reason := no_gradients(run):
            raise UsageError(f"--with: {name}: {reason}")
        if not explaining(run).stepwise:
            raise UsageError(f"--with: {name} is of task {run.settings.task!r}, whose losses have no steps back; drop --with")
        if run.task is not other.task:
            raise UsageError(
                f"--with: {name} is of task {run.settings.task!r}, {first} of {other.settings.task!r}; give runs of one task"
            )


def _cells(found: Measured, when: str, steps: Sequence[int]) -> Iterator[str]:
    shares, norms = relative(found.flows[when]), found.depths[when].norms
    for step in steps:
        yield f"{shares[step - 1]:.2g}" if step <= len(shares) else "-"
    yield f"{norms[0] / norms[-1]:.2g}" if norms[-1] else "-"


def _lines(found: Mapping[str, Measured]) -> list[str]:
    """What is left of the gradients of each run, for a terminal."""
    far = max(flow.norms.shape[1] - 1 for one in found.values() for flow in one.flows.values())
    steps = [step for step in TOLD if step <= far] or [far]
    head = ["run", "weights", *(f"{step} steps back" for step in steps), "lowest"]
    rows = [[name, when, *_cells(one, when, steps)] for name, one in found.items() for when in one.flows]
    return [*aligned([head, *rows], left=(0, 1)), *NOTES]


def gradients_together(runs: Mapping[str, AnyRun], text: str, options: ExplainOptions, telling: Telling = untold) -> View:
    """`gradients` of several runs, by name, each of the text as its own tokenizer cuts it."""
    _check(runs)
    found = {
        name: measured(run, text, options, one_of(telling, at, len(runs), "runs"))
        for at, (name, run) in enumerate(runs.items())
    }
    flows = {name: one.flows for name, one in found.items()}
    depths = {name: one.depths for name, one in found.items()}
    data = {"runs": [{"name": name, "kind": runs[name].settings.kind, **one.to_json()} for name, one in found.items()]}
    pictures = [
        Picture("Through time", time_picture(flows, title="Gradients through time")),
        Picture("Through the layers", depth_picture(depths, title="Gradients through the layers")),
    ]
    return View("gradients", "Where the losses of several runs reach", data, pictures, _lines(found), guides.GRADIENTS)
