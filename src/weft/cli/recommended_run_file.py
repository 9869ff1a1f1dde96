"""The run file that `weft init TASK --data FILE` prints: the recommended options for the data, with a comment on each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from weft.cli.run_file_template import COMMENT_COLUMN, Line, comment, format_line, to_toml, with_lost_formats
from weft.comparison.plan import check_files_exist
from weft.config import Config, described_fields, table_class
from weft.errors import ConfigError, DataError
from weft.interop.formats import lost_formats
from weft.runs.recommend import TABLES, Recommendation, recommend
from weft.tasks.detect import detect
from weft.tasks.registry import TASKS
from weft.tasks.templates import find_template

MAX_TEXT = 40  # characters of an option with a comment
PLAIN = "`weft init {task}` prints all options."
ADVICE = f"Without an option, weft train chooses it again. {PLAIN}"
NOTHING = f"There are no recommended settings for this task and architecture yet. {PLAIN}"


def render_recommended(task: str, arch: str | None, files: list[str]) -> str:
    """The run file for an architecture, or for the recommended one, and training files relative to the current directory."""
    template = find_template(task)
    train = files if len(files) > 1 else files[0]
    values: dict[str, Any] = {"task": task, "data": {**template.data, "train": train, **_detect(task, files)}}
    if arch is not None:
        values["model"] = {"arch": arch}
    recommendation = recommend(values, base=Path())
    check_files_exist(recommendation.values)  # a task without recipes has not read them
    lines = list(_lines(recommendation))
    column = max(COMMENT_COLUMN, *(len(line.text) + 2 for line in lines if isinstance(line, Line) and line.comment))
    return "".join([*_header(task, recommendation), *(format_line(line, column) for line in lines)])


def _detect(task: str, files: list[str]) -> dict[str, Any]:
    """The options of [data] that read the files, such as the names of columns; {} if they cannot be told."""
    with suppress(DataError):  # reading them says what is wrong
        return detect(files, task=task).data
    return {}


def _header(task: str, recommendation: Recommendation) -> Iterator[str]:
    reason = recommendation.reason or recommendation.warning
    yield f"# weft run file{f' with recommended settings for {reason}' if recommendation.reason else ''}.\n"
    if not recommendation.reason and reason:
        yield f"# {reason[:1].upper()}{reason[1:]}.\n"
    advice = ADVICE if recommendation.reason else NOTHING if not reason else PLAIN
    yield f"# {advice.format(task=task)}\n\n"


def _lines(recommendation: Recommendation) -> Iterator[Line | str]:
    config, values = recommendation.config, recommendation.values
    lost = lost_formats(config)
    yield Line(f'task = "{config.task}"', TASKS[config.task].description)
    for table in TABLES:
        options = dict(values.get(table, {}))
        if not options:
            continue
        if not all(isinstance(value, Mapping) for value in options.values()):
            yield from ("", f"[{table}]")
        if table == "model":
            yield Line(f'arch = "{options.pop("arch")}"', ", ".join(find_template(config.task).archs))
        yield from with_lost_formats(table, _table(table, options, type(getattr(config, table))), lost)


def _table(path: str, options: Mapping[str, Any], config_class: type[Config]) -> Iterator[Line | str]:
    """The options of a table, then its subtables."""
    for name, value in options.items():
        if not isinstance(value, Mapping):
            text = f"{name} = {to_toml(value)}"
            # a long path leaves no room
            yield Line(text, comment(_find_field(name, config_class)) if len(text) < MAX_TEXT else "")
    for name, value in options.items():
        if isinstance(value, Mapping):
            yield from ("", f"[{path}.{name}]")
            yield from _table(f"{path}.{name}", value, table_class(config_class.model_fields[name]) or config_class)


def _find_field(name: str, config_class: type[Config]) -> FieldInfo:
    """The field of an option, which may be one of a subtable: [model] sets options of encoder and decoder."""
    fields = described_fields(config_class)
    if name in fields:
        return fields[name]
    for field in fields.values():
        if (inner := table_class(field)) is not None and name in (inner_fields := described_fields(inner)):
            return inner_fields[name]
    raise ConfigError(name, "unknown option")
