"""The context policy of a comparison of language models: the same for all rows, and reported with their scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weft.comparison.results import RunResults
from weft.errors import UsageError
from weft.runs.config import RunConfig
from weft.tasks.registry import find_task

Groups = Mapping[str, Sequence[RunResults]]
ALL_PRECEDING = "each token is predicted from all preceding tokens that the model can read"
SAME_LINE = "each token is predicted from its own line"


def check_context(config: RunConfig, policy: str, name: str) -> None:
    """Raise UsageError, before anything is trained or evaluated, if the run or row called `name` cannot apply the policy."""
    contexts = config.spec.compare.contexts
    if contexts is None:
        raise UsageError("context", f"not available for task {config.task!r} ({name})")
    contexts.check(config, policy, name)


def check_one_context(runs: Sequence[RunResults]) -> None:
    """Raise UsageError if runs were evaluated with different context policies."""
    first = runs[0]
    for other in runs[1:]:
        if other.policy != first.policy:
            raise UsageError(
                "compare",
                f"{first.run} and {other.run} have different context policies ({first.policy}, {other.policy})",
                "evaluate both with one policy",
            )


def _describe(policy: str, rows: Mapping[str, str], default: str) -> str:
    """'Context policy full: each token ... reads (carry:warm-64: lstm; stride:32/64: gpt, transformer).'"""
    applied = {row: context.removeprefix(f"{default}/") for row, context in rows.items()}
    if set(applied.values()) == {"reset:line"}:
        return f"Context policy reset: {SAME_LINE}."
    parts = [f"{mode}: {', '.join(row for row in applied if applied[row] == mode)}" for mode in dict.fromkeys(applied.values())]
    if policy == default:
        return f"Context policy {default}: {ALL_PRECEDING} ({'; '.join(parts)})."
    return f"Context policy {policy} ({'; '.join(parts)}); learning curves use {default}."


def context_of(groups: Groups) -> dict[str, Any] | None:
    """The policy, how each row applied it, and a sentence about both; None for tasks without a context."""
    first_runs = {row: runs[0] for row, runs in groups.items()}
    run = next(iter(first_runs.values()))
    policy, contexts = run.policy, find_task(run.task).compare.contexts
    if not policy or contexts is None:
        return None
    rows = {row: run.context for row, run in first_runs.items()}
    return {"policy": policy, "rows": rows, "text": _describe(policy, rows, contexts.default)}
