"""The context policy of a comparison of language models: one for all rows, named wherever their scores are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weft.comparison.results import RunResults
from weft.errors import UsageError
from weft.runs.config import RunConfig
from weft.tasks.registry import find_task

Groups = Mapping[str, Sequence[RunResults]]
PAST = "each token is predicted from its whole past, as far as the model reads"
LINE = "each token is predicted from its own line"


def check_context(config: RunConfig, policy: str, name: str) -> None:
    """Refuse, before anything is trained or measured, a policy that the run, or the row, called `name` can't follow."""
    contexts = config.spec.compare.contexts
    if contexts is None:
        raise UsageError("--context", f"is for language models, and {name} is a run of task {config.task!r}", "drop it")
    contexts.check(config, policy, name)


def check_one_context(runs: Sequence[RunResults]) -> None:
    """Refuse scores that were measured under different policies."""
    first = runs[0]
    for other in runs[1:]:
        if other.policy != first.policy:
            raise UsageError(
                "compare",
                f"{first.run} was measured under the context policy {first.policy!r}, {other.run} under {other.policy!r}",
                "measure both under one",
            )


def _sentence(policy: str, rows: Mapping[str, str], default: str) -> str:
    """'Context policy full: each token ... reads (carry:warm-64: lstm; stride:32/64: gpt, transformer).'"""
    followed = {row: context.removeprefix(f"{default}/") for row, context in rows.items()}
    if set(followed.values()) == {"reset:line"}:
        return f"Context policy reset: {LINE}."
    ways = [f"{way}: {', '.join(row for row in followed if followed[row] == way)}" for way in dict.fromkeys(followed.values())]
    if policy == default:
        return f"Context policy {default}: {PAST} ({'; '.join(ways)})."
    return f"Context policy {policy} ({'; '.join(ways)}); validation during training, and so the learning curves, {default}."


def context_of(groups: Groups) -> dict[str, Any] | None:
    """The policy, how each row followed it, and both in a sentence; None where nothing is predicted from a context."""
    first = {row: runs[0] for row, runs in groups.items()}
    one = next(iter(first.values()))
    policy, contexts = one.policy, find_task(one.task).compare.contexts
    if not policy or contexts is None:
        return None
    rows = {row: run.context for row, run in first.items()}
    return {"policy": policy, "rows": rows, "text": _sentence(policy, rows, contexts.default)}
