"""Handling of invalid inputs among valid ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from weft.tasks.spec import InvalidInput
from weft.text.reading import invalid_text

T = TypeVar("T")
U = TypeVar("U")
Texts = tuple[str, ...]


def read_texts(value: Any, number: int | None = None, problem: str = "") -> Texts | InvalidInput:
    """The texts of an input, which is a string or a list of strings; `problem` is the reason if there are not `number`."""
    texts = tuple(value) if isinstance(value, list | tuple) else (value,)
    if number is not None and len(texts) != number:
        return InvalidInput(problem)
    reason = next((reason for text in texts if (reason := invalid_text(text)) is not None), None)
    return texts if reason is None else InvalidInput(reason)


def read_text(value: Any) -> str | InvalidInput:
    """An input that is one string."""
    reason = invalid_text(value)
    return str(value) if reason is None else InvalidInput(reason)


def mark_invalid(
    inputs: Sequence[T | InvalidInput], problems: Callable[[list[T]], Mapping[int, str]]
) -> list[T | InvalidInput]:
    """Replace valid inputs that have a problem with InvalidInput. `problems` returns reasons by index in the list it gets."""
    valid = [(index, value) for index, value in enumerate(inputs) if not isinstance(value, InvalidInput)]
    reasons = problems([value for _, value in valid])
    invalid = {valid[index][0]: InvalidInput(reason) for index, reason in reasons.items()}
    return [invalid.get(index, value) for index, value in enumerate(inputs)]


def process_valid(inputs: Sequence[T | InvalidInput], process: Callable[[list[T]], Sequence[U]]) -> list[U | InvalidInput]:
    """The results of the valid inputs; each InvalidInput stays in its position."""
    results = iter(process([value for value in inputs if not isinstance(value, InvalidInput)]))
    return [value if isinstance(value, InvalidInput) else next(results) for value in inputs]
