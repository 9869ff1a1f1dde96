"""Reads instructions with responses: objects or tables with prompt and response columns, or lists of chat messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from weft.data.json_objects import get_string, has_key, read_objects
from weft.data.table_rows import NOT_A_TABLE, OBJECT_FORMATS, TableOptions, file_format, file_location, is_table, open_table
from weft.errors import DataError
from weft.tasks.responses.template import Template
from weft.text.reading import FileSummary, check_text, quote

# names of columns that are known, in this order
PROMPTS = ("instruction", "prompt", "question")
INPUTS = ("input", "context")
RESPONSES = ("output", "response", "completion", "answer")
MESSAGES = ("messages", "conversations")
# OpenAI and ShareGPT
ROLES = {"system": "system", "user": "user", "human": "user", "assistant": "assistant", "gpt": "assistant"}
ROLE_KEYS, TEXT_KEYS = ("role", "from"), ("content", "value")


class ColumnNames(NamedTuple):
    """The columns that the run file names; None: the first known name that the data has."""

    prompt: str | None = None
    input: str | None = None
    response: str | None = None
    messages: str | None = None


class Dialogue(NamedTuple):
    """Prompts in the template and the responses to them, in turns."""

    prompts: tuple[str, ...]
    responses: tuple[str, ...]
    questions: tuple[str, ...]  # the prompts without the template
    path: Path
    line: int  # first line in the file, from 1


def _rows(path: Path, options: TableOptions, summary: FileSummary) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line and values of each record of a table or a file of objects."""
    if file_format(path) in OBJECT_FORMATS:
        is_parquet = file_format(path) == "parquet"
        names = (*MESSAGES, *PROMPTS, *INPUTS, *RESPONSES)
        yield from read_objects(
            path, () if is_parquet else ("instruction", "output"), options.encoding, summary, optional_keys=names
        )
        return
    if not is_table(path, options.delimiter):
        if not path.exists():  # the name would be corrected in vain
            raise DataError(path, "file not found")
        raise DataError(path, NOT_A_TABLE, "use a table with the columns instruction and output, or JSONL with messages")
    table = open_table(path, options, summary)
    summary.columns = tuple(table.first)
    for line, cells in table.rows():
        yield line, dict(zip(table.first, cells, strict=True))


def _known(row: Mapping[str, Any], name: str | None, known: Sequence[str]) -> str | None:
    """The column of the run file, or else the first known one that a record has; None if it has none."""
    return name if name is not None else next((key for key in known if has_key(dict(row), key)), None)


def _find_columns(row: dict[str, Any], names: ColumnNames, where: str) -> ColumnNames:
    """The columns of a file, by its first record."""
    if names.messages is not None or (names.prompt is None and names.response is None):
        messages = _known(row, names.messages, MESSAGES)
        if messages is not None:
            return ColumnNames(messages=messages)
    prompt, response = _known(row, names.prompt, PROMPTS), _known(row, names.response, RESPONSES)
    if prompt is None or response is None:
        missing, option = ("prompt", "prompt_column") if prompt is None else ("response", "response_column")
        raise DataError(where, f"no {missing} among the columns {', '.join(map(repr, row))}", f"set data.{option}")
    return ColumnNames(prompt, _known(row, names.input, INPUTS), response)


def _turn(row: dict[str, Any], columns: ColumnNames, where: str) -> tuple[str, str]:
    """Prompt and response of a record; the input follows the instruction after a blank line."""
    prompt = get_string(row, str(columns.prompt), where)
    text = get_string(row, columns.input, where) if columns.input is not None and has_key(row, columns.input) else ""
    return f"{prompt}\n\n{text}" if text.strip() else prompt, get_string(row, str(columns.response), where)


def _message(value: Any, where: str) -> tuple[str, str]:
    """Role and text of a message."""
    keys = value if isinstance(value, dict) else {}
    role_key = next((key for key in ROLE_KEYS if key in keys), None)
    text_key = next((key for key in TEXT_KEYS if key in keys), None)
    if role_key is None or text_key is None:
        raise DataError(where, "expected an object with 'role' and 'content'")
    role, text = keys[role_key], keys[text_key]
    if not isinstance(role, str) or role not in ROLES:
        raise DataError(where, f"role must be system, user or assistant, got {quote(str(role), 40)}")
    if not isinstance(text, str):
        raise DataError(where, "its content is not a string")
    return ROLES[role], check_text(text, where)


def read_messages(values: Any, where: str) -> tuple[str, list[str], list[str]]:
    """The system message, the prompts and the responses of a list of messages: users and assistants take turns."""
    if not isinstance(values, list):
        raise DataError(where, "messages must be a list")
    messages = [_message(value, f"{where}: message {number}") for number, value in enumerate(values, 1)]
    system = messages.pop(0)[1] if messages and messages[0][0] == "system" else ""
    offset = len(values) - len(messages)
    for index, (role, _) in enumerate(messages):
        if role != ("user", "assistant")[index % 2]:
            raise DataError(
                f"{where}: message {index + 1 + offset}",
                f"expected a message of the {('user', 'assistant')[index % 2]}, got one of the {role}",
                "users and assistants take turns; join or remove messages",
            )
    if not messages or len(messages) % 2:
        raise DataError(where, "the last message is not of the assistant", "remove it or add a response")
    return system, [text for _, text in messages[::2]], [text for _, text in messages[1::2]]


def _dialogue(row: dict[str, Any], columns: ColumnNames, where: str) -> tuple[str, list[str], list[str]]:
    """The system message, the prompts and the responses of a record."""
    if columns.messages is None:
        prompt, response = _turn(row, columns, where)
        return "", [prompt], [response]
    if not has_key(row, columns.messages):
        raise DataError(where, f"no key {columns.messages!r}", "use records of one kind in a file")
    return read_messages(row[columns.messages], where)


def read_dialogues(
    paths: Sequence[Path], names: ColumnNames, options: TableOptions, template: Template, summary: FileSummary
) -> Iterator[Dialogue]:
    """The conversations of files. Those without any text in a response are skipped and counted."""
    for path in paths:
        columns: ColumnNames | None = None
        for line, row in _rows(path, options, summary):
            where = file_location(path, line)
            columns = _find_columns(row, names, where) if columns is None else columns
            system, prompts, responses = _dialogue(row, columns, where)
            if all(text.strip() for text in responses):
                yield Dialogue(template.prompts(system, prompts), tuple(responses), tuple(prompts), path, line)
            else:
                summary.skip(where)
        if columns is None:
            raise DataError(path, "no examples below the header")
