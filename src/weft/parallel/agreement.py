"""What all processes of a group must have in common before they train."""

from __future__ import annotations

from collections.abc import Mapping

from weft.errors import UsageError
from weft.parallel.group import Group


def check_equal(group: Group, values: Mapping[str, str], fix: str) -> None:
    """Refuse processes that differ from the first one in one of these values, by name. All processes raise the same error."""
    first, *others = group.gather(dict(values))
    for rank, theirs in enumerate(others, 1):
        for name, value in first.items():
            if theirs.get(name) != value:
                problem = f"{group.name(rank)} has {theirs.get(name)}, {group.name(0)} has {value}"
                raise UsageError(name, problem, fix)
