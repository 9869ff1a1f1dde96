"""The commented run file that `weft init` prints, generated from the configuration classes, their descriptions and the presets.

Options that are set come first in their table. An option that is commented out shows the default for the architecture.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin

from pydantic.fields import FieldInfo

from weft.config import BUDGETS, Choice, Config, described_fields
from weft.interop.formats import lost_formats
from weft.runs.config import RunConfig
from weft.runs.resolve import RunFile, resolve
from weft.tasks.registry import TASKS, find_task
from weft.tasks.templates import TaskTemplate, find_template

MAX_COLUMNS = 120
COMMENT_COLUMN = 34  # at least
SUBTABLE = "#   "  # prefix of each line of an optional table
SIDES = ("encoder", "decoder")
SAMPLING = ("num_samples", "sample_prompts", "sample_max_new_tokens")  # for tasks whose models generate
# options that few run files need
RARE = ("layer_type", "init_strict", "lr_multipliers")
# options of encoder-decoders; None in a resolved configuration if the option does not apply
DECODER_OPTIONS = ("attention_dim", "attention_placement", "input_feeding", "bridge", "feed_context")
# options of a character encoder; the others are those of the tagger
CHAR_ENCODER = ("layer_type", "num_layers", "hidden_size", "embedding_dim", "pooling")
HEADER = """\
# weft run file. Options that are commented out show their default value. weft train chooses values that suit the data
# instead: `weft init {task} --data FILE` prints them, and `recommend = false` switches that off.
#
"""
_ONLY = re.compile(r"([\w, -]+) only: ")
_NOT_WITH = re.compile(r"Not with (\w+)")


class Line(NamedTuple):
    """An option with its comment."""

    text: str  # as TOML, after a # if it is a default
    comment: str


def render_template(task: str, arch: str) -> str:
    """The run file for an architecture."""
    template = find_template(task)
    values = {"task": task, "data": dict(template.data), "model": {"arch": arch}}
    config = resolve(values, base=Path("/"))
    lines = list(_lines(config, template))
    column = max(COMMENT_COLUMN, *(len(line.text) + 2 for line in lines if isinstance(line, Line)))
    commands = template.commands(arch)
    width = max(len(command) for command, _ in commands) + 4
    usage = "".join(f"#   {command:<{width}}{about}\n" for command, about in commands)
    return HEADER.format(task=task) + usage + "\n" + "".join(format_line(line, column) for line in lines)


def format_line(line: Line | str, column: int) -> str:
    if isinstance(line, str):
        return f"{line}\n"
    first, *rest = textwrap.wrap(line.comment, MAX_COLUMNS - column - 2, break_on_hyphens=False) or [""]
    rows = [f"{line.text:<{column}}# {first}".rstrip(" #"), *(f"{'':<{column}}# {text}" for text in rest)]
    return "".join(f"{row}\n" for row in rows)


def _lines(config: RunConfig, template: TaskTemplate) -> Iterator[Line | str]:
    spec, lost = find_task(config.task), lost_formats(config)
    hidden = {*template.hidden, *RARE, *(SAMPLING if spec.samples is None else ())}
    yield Line(f'task = "{config.task}"', TASKS[config.task].description)
    yield from _options(RunFile, {"seed": 0, "recommend": True}, {}, ())
    yield from ("", "[data]")
    train = comment(described_fields(type(config.data))["train"])
    files = train.replace("training files", f"training files: {template.files}", 1) if template.files else train
    values = _values(config.data) | dict(template.data)
    yield from _options(type(config.data), values, template.data, hidden, {"train": files})
    yield from ("", "[tokenizer]")
    tokenizer = _options(type(config.tokenizer), _values(config.tokenizer), {}, {*hidden, "source", "target"})
    yield from with_lost_formats("tokenizer", tokenizer, lost)
    if template.tokenizer_example:
        yield "# or one tokenizer for each side:"
        yield from (f"{SUBTABLE}{line}" for line in template.tokenizer_example)
    yield from ("", "[model]")
    yield Line(f'arch = "{config.arch}"', ", ".join(template.archs))
    yield from with_lost_formats("model", _model_lines(config.model, hidden), lost)
    if config.preset.estimator.by_steps:
        yield from ("", "[train]")
        budget = next(name for name in BUDGETS if getattr(config.train, name) is not None)
        comments = {budget: f"budget: set one of {', '.join(BUDGETS)}"}
        continues_prompts = config.spec.decode is not None and config.spec.decode.generate is not None
        values, unused = _values(config.train), {*hidden, *(() if continues_prompts else SAMPLING[1:])}
        yield from _options(type(config.train), values, {budget: values[budget]}, unused, comments)


def with_lost_formats(table: str, lines: Iterable[Line | str], lost: Mapping[str, Sequence[str]]) -> Iterator[Line | str]:
    """The lines of a table; the comment of an option names the formats of `weft export` that its value prevents."""
    for line in lines:
        if isinstance(line, Line):
            option = line.text.removeprefix("# ").partition(" = ")[0]
            formats = ", ".join(lost.get(f"{table}.{option}", ()))
            line = line._replace(comment=f"{line.comment}; prevents export to {formats}") if formats else line
        yield line


def _model_lines(model: Config, hidden: Collection[str]) -> Iterator[Line | str]:
    values = _values(model)
    tables = {name: value for name, value in values.items() if isinstance(value, Config)}
    if set(SIDES) <= set(tables):
        yield from _side_lines(model, hidden)
        return
    yield from _options(type(model), values, {}, {*hidden, *tables})
    for name, table in tables.items():
        options = CHAR_ENCODER if name == "char_encoder" else tuple(type(table).model_fields)
        yield from _subtable(f"model.{name}", model, name, _values(table), options)


def _side_lines(model: Config, hidden: Collection[str]) -> Iterator[Line | str]:
    """Options that both sides share are options of [model]."""
    encoder, decoder = (getattr(model, side) for side in SIDES)
    encoder_values, decoder_values = _values(encoder), _values(decoder)
    shared = [name for name in encoder_values if name in decoder_values and encoder_values[name] == decoder_values[name]]
    common = {name: encoder_values[name] for name in shared}
    yield from _options(type(encoder), common, {}, {*hidden, "bidirectional", *(set(encoder_values) - set(shared))})
    values = _values(model)
    unused = [name for name in DECODER_OPTIONS if values[name] is None]
    yield from _options(type(model), values | common, {}, {*hidden, *SIDES, *unused})
    options = [name for name in encoder_values if name == "bidirectional" or (name not in shared and name not in hidden)]
    yield from _subtable("model.encoder", model, "encoder", encoder_values, ["layer_type", *options])
    options = [name for name in decoder_values if name not in shared and name not in (*hidden, "bidirectional")]
    yield from _subtable("model.decoder", model, "decoder", decoder_values, ["layer_type", "num_layers", *options])


def _subtable(path: str, owner: Config, name: str, values: Mapping[str, Any], options: Sequence[str]) -> Iterator[Line | str]:
    field = described_fields(type(owner))[name]
    yield Line(f"{SUBTABLE}[{path}]", comment(field))
    table = type(getattr(owner, name))
    for line in _options(table, values, {}, [option for option in values if option not in options]):
        if isinstance(line, Line):
            yield Line(SUBTABLE + line.text.removeprefix("# "), line.comment)


def _options(
    table: type[Config],
    values: Mapping[str, Any],
    set_values: Mapping[str, Any],
    hidden: Collection[str],
    comments: Mapping[str, str] | None = None,
) -> Iterator[Line | str]:
    """The options of a table: those that are set, those with a default as comments, and the names of the rest."""
    comments = comments or {}
    described = described_fields(table)
    fields = {name: described[name] for name in values if name in described and name not in hidden}
    for name in set_values:
        yield Line(f"{name} = {to_toml(values[name])}", comments.get(name) or comment(fields[name]))
    unset = []
    for name, field in fields.items():
        if name in set_values:
            continue
        if values[name] is not None:
            yield Line(f"# {name} = {to_toml(values[name])}", comment(field))
        elif _applies(field, values):
            unset.append(name)
    if unset:
        yield from textwrap.wrap(f"not set: {', '.join(unset)}", MAX_COLUMNS, initial_indent="# ", subsequent_indent="# ")


def _values(config: Config) -> dict[str, Any]:
    return {name: getattr(config, name) for name in type(config).model_fields}


def _applies(field: FieldInfo, values: Mapping[str, Any]) -> bool:
    """Whether an option without a default can be set: its description names the values of other options that it requires."""
    in_use = {value for value in values.values() if isinstance(value, str)}
    if only := _ONLY.match(field.description or ""):
        return bool(in_use & set(re.split(r", | and ", only[1])))
    excluded = _NOT_WITH.search(field.description or "")
    return excluded is None or excluded[1] not in in_use


# ---- text


def comment(field: FieldInfo) -> str:
    """The description of an option, and its choices unless the description names all of them."""
    sentences = re.split(r"(?<=[.])\s+(?=[a-zA-Z])", re.sub(r"\s+", " ", field.description or "").strip())
    sentences[0] = _ONLY.sub("", sentences[0])  # the template shows an option only where it applies
    text = "; ".join(_plain(sentence) for sentence in sentences if not sentence.startswith("Default: "))
    choices = choices_of(field)
    if all(re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text) for name in choices):
        return text
    if text.split(" ")[0].rstrip(":") in choices:
        return f"{', '.join(choices)}; {text}"
    first = _plain(sentences[0])
    return f"{first} ({', '.join(choices)})" if ":" in first or ";" in first else f"{first}: {', '.join(choices)}"


def _plain(sentence: str) -> str:
    """A sentence as a part of a comment: without its period, and in lowercase unless it starts with a name."""
    text = sentence.removesuffix(".")
    return text if text[1:2].isupper() or text[:1].islower() else text[:1].lower() + text[1:]


def choices_of(field: FieldInfo) -> list[str]:
    """The names that an option may have as its value."""
    for part in field.metadata:
        if isinstance(part, Choice):
            return list(part.names)
    return _choices_in(field.annotation)


def _choices_in(annotation: Any) -> list[str]:
    if get_origin(annotation) is Literal:
        return [value for value in get_args(annotation) if isinstance(value, str) and value != "auto"]
    for part in get_args(annotation):
        if isinstance(part, Choice):
            return list(part.names)
    return [name for part in get_args(annotation) if not isinstance(part, str) for name in _choices_in(part)]


def to_toml(value: Any) -> str:
    """A value as TOML."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and 0 < abs(value) < 0.01:
        mantissa, _, exponent = f"{value:e}".partition("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    if isinstance(value, list):
        return f"[{', '.join(map(to_toml, value))}]"
    return json.dumps(value, ensure_ascii=False)
