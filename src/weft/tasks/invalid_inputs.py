"""Inputs that give no result, among others that do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from weft.tasks.spec import Fault
from weft.text.reading import invalid_text

T = TypeVar("T")
U = TypeVar("U")
Texts = tuple[str, ...]


def read_texts(given: Any, number: int | None = None, wrong: str = "") -> Texts | Fault:
    """The texts of an input, which is a string or several; `wrong` is the reason where there are not `number` of them."""
    texts = tuple(given) if isinstance(given, list | tuple) else (given,)
    if number is not None and len(texts) != number:
        return Fault(wrong)
    reason = next((reason for text in texts if (reason := invalid_text(text)) is not None), None)
    return texts if reason is None else Fault(reason)


def read_text(given: Any) -> str | Fault:
    """An input that is one string."""
    reason = invalid_text(given)
    return str(given) if reason is None else Fault(reason)


def mark_faults(inputs: Sequence[T | Fault], problems: Callable[[list[T]], Mapping[int, str]]) -> list[T | Fault]:
    """The inputs, with a Fault for each that `faults` has a reason for, by its number from 0 among the valid ones."""
    valid = [(at, one) for at, one in enumerate(inputs) if not isinstance(one, Fault)]
    reasons = problems([one for _, one in valid])
    found = {valid[at][0]: Fault(reason) for at, reason in reasons.items()}
    return [found.get(at, one) for at, one in enumerate(inputs)]


def process_valid(inputs: Sequence[T | Fault], process: Callable[[list[T]], Sequence[U]]) -> list[U | Fault]:
    """A result for each input that is valid; a Fault stays where it is."""
    results = iter(process([one for one in inputs if not isinstance(one, Fault)]))
    return [one if isinstance(one, Fault) else next(results) for one in inputs]
