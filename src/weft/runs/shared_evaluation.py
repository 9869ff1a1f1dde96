"""Evaluation of a run by several processes, each of which has loaded it."""

from __future__ import annotations

from weft.errors import UsageError
from weft.parallel.group import Group
from weft.runs.run import AnyRun


def share_evaluation(run: AnyRun, group: Group) -> None:
    """Let the processes of a group evaluate a run together. Refuses runs whose evaluation cannot be divided."""
    if group.size == 1:
        return
    if not run.spec.shares_evaluation:
        raise UsageError("processes", f"runs of task {run.task!r} are evaluated by one process", "leave it out")
    for member in run.members:
        # n-gram models are divided like networks
        if not (member.config.preset.estimator.by_steps or run.generates):
            raise UsageError("processes", f"{member.arch!r} is evaluated by one process", "leave it out")
        member.group = group
    run.group = group
