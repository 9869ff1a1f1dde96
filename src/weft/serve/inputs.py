"""Inputs of JSON as inputs of a task, and predictions as records of JSON."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from weft.config import Config
from weft.data.input_records import InputRecord
from weft.errors import UsageError, WeftError
from weft.files import as_json
from weft.runs.run import AnyRun
from weft.serve.errors import TooLarge
from weft.serve.jobs import Media
from weft.serve.limits import Limits
from weft.tasks.spec import InvalidInput
from weft.text.table_layout import count_of

if TYPE_CHECKING:
    from weft.tasks.lines import Lines

MEDIA = 'expected {"base64": content, "name": file name}'


class Inputs(NamedTuple):
    """The inputs of a request: as records, for the answer, and as the task reads them."""

    records: list[InputRecord]
    values: list[Any]  # None for an empty input, InvalidInput for one that cannot be used


def check_texts(texts: Sequence[Any], where: str, limits: Limits) -> None:
    """Refuse too many texts, and texts that are too long."""
    if len(texts) > limits.max_texts:
        raise TooLarge(where, f"{len(texts):,} are more than {limits.max_texts:,}", "send them in several requests")
    for number, text in enumerate(texts, 1):
        parts = text if isinstance(text, list | tuple) else text.values() if isinstance(text, dict) else [text]
        is_media = isinstance(text, dict) and "base64" in text  # limited by the size of the body
        length = 0 if is_media else sum(len(part) for part in parts if isinstance(part, str))
        if length > limits.max_text_chars:
            problem = f"{length:,} characters are more than {limits.max_text_chars:,}"
            raise TooLarge(f"{where}, number {number}", problem, "split the text")


def read_media(value: Any) -> Media | InvalidInput:
    """The content of a file."""
    if not isinstance(value, dict) or set(value) - {"base64", "name"} or not isinstance(value.get("base64"), str):
        return InvalidInput(MEDIA)
    name = value.get("name", "file")
    if not isinstance(name, str):
        return InvalidInput(MEDIA)
    try:
        return Media(name, base64.b64decode(value["base64"], validate=True))
    except (binascii.Error, ValueError):
        return InvalidInput("not valid base64")


def reads_files(run: AnyRun) -> bool:
    """Whether an input is the content of a file."""
    return run.spec.line_format is not None and run.spec.line_format(run.config, run.spec.predict_options()).reads_files


def _as_texts(value: Any, names: Sequence[str]) -> tuple[str, ...] | InvalidInput:
    """The texts of an input that is a list, or an object with the names of the columns."""
    if isinstance(value, dict):
        if set(value) != set(names):
            return InvalidInput(f"expected the keys {', '.join(names)}")
        value = [value[name] for name in names]
    if not isinstance(value, list | tuple) or not all(isinstance(text, str) for text in value):
        return InvalidInput("expected a text or a list of texts")
    return tuple(value)


def _split(value: Any, names: Sequence[str], lines: Lines[Any, Any] | None) -> tuple[tuple[str, ...], str | None]:
    """The texts of an input, and the problem if it has none."""
    if isinstance(value, str):
        return ((value,), None) if lines is None else lines.split(value)
    texts = _as_texts(value, names)
    return ((), texts.reason) if isinstance(texts, InvalidInput) else (texts, None)


def read_inputs(run: AnyRun, values: Sequence[Any], options: Config) -> Inputs:
    """The inputs of a request. A text is split as a line of `weft predict`."""
    spec = run.spec
    lines = None if spec.line_format is None else spec.line_format(run.config, options)
    kind, names = spec.inputs(run.config)
    records, parsed = list[InputRecord](), list[Any]()
    for value in values:
        if lines is not None and lines.reads_files:
            media = read_media(value)
            name = media.name if isinstance(media, Media) else None
            records.append(InputRecord(name, (), "", ""))
            parsed.append(media)
            continue
        texts, problem = _split(value, names, lines)
        records.append(InputRecord(value if isinstance(value, str) else "\t".join(texts), texts, "", ""))
        if problem is None and not isinstance(value, str) and kind != "words" and len(texts) != len(names):
            problem = f"expected {count_of(len(names), 'text')} ({', '.join(names)}), got {len(texts)}"
        if problem is not None:
            parsed.append(InvalidInput(problem))
        elif lines is None:
            parsed.append(texts[0] if len(texts) == 1 else InvalidInput("expected a text"))
        else:
            parsed.append(lines.parse(texts))
    return Inputs(records, parsed)


def prediction_records(
    run: AnyRun, inputs: Inputs, results: Sequence[Any], options: Config, error: Callable[[WeftError], dict[str, Any]]
) -> list[dict[str, Any]]:
    """A record for each input, as `weft predict --json` prints it. `error` makes the object for an input that is invalid."""
    lines = None if run.spec.line_format is None else run.spec.line_format(run.config, options)
    records = list[dict[str, Any]]()
    for number, (entry, result) in enumerate(zip(inputs.records, results, strict=True), 1):
        if isinstance(result, InvalidInput):
            records.append(error(UsageError(f"input {number}", result.reason)))
        elif lines is not None:
            records.append(lines.json(entry, result))
        else:
            records.append(plain(result))
    return records


def plain(value: Any) -> Any:
    """Named tuples as objects, and everything inside of them, for tasks without a format of lines."""
    if isinstance(value, tuple) and "_asdict" in dir(value):
        return {name: plain(inner) for name, inner in value._asdict().items()}  # type: ignore[attr-defined]
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    return as_json(value)
