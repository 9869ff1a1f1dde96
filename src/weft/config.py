"""Run files: strictly typed tables, errors that name the option, overrides. Each table is defined next to its user."""

from __future__ import annotations

import ast
import difflib
import inspect
import re
import textwrap
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, ErrorDetails, PydanticCustomError, core_schema

from weft.errors import ConfigError, unknown_name, unknown_option

T = TypeVar("T", bound="Config")
BUDGETS = ("max_steps", "max_tokens", "max_epochs", "max_minutes")  # options of [train]; a run has exactly one
MAX_FILE_BYTES = 1 << 20
MAX_VALUE_CHARS = 80  # of a value in a message
MAX_KEY_PARTS = 100  # of a dotted key: tomllib takes quadratic time
_PART = rb"(?:[\w-]++|\"[^\"\n]*+\"|'[^'\n]*+')[ \t]*+"
_TOO_DEEP = re.compile(rb"(?<![\w-])%s(?:\.[ \t]*+%s){%d}" % (_PART, _PART, MAX_KEY_PARTS))
_ASSIGNMENT = re.compile(r"[ \t]*([\w.-]{1,100})[ \t]*=[ \t]*(.*)")
_YAML = re.compile(r"[ \t]*([\w.-]{1,100})[ \t]*:[ \t]+([^\s:].*)")
_BARE_WORD = re.compile(r"[^\s\"'\[\]{}=,][^\"'\[\]{}=,]{0,200}")
_TOML_POSITION = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)$")  # at the end of the messages of tomllib
_QUOTED_VALUE = re.compile(r"[+-]?[\d_]{0,20}\.?\d{1,20}(?:[eE][+-]?\d{1,3})?|true|false")  # a number or boolean in quotes
_TYPE_NAMES = {
    "a valid integer": "an integer",
    "a valid number": "a number",
    "a valid string": "a string",
    "a valid boolean": "true or false",
    "a valid list": "a list",
    "a valid dictionary": "a table",
    "False": "false",
}
_LIMITS = {
    "greater_than": ("greater than", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("less than", "lt"),
    "less_than_equal": ("at most", "le"),
}


class Config(BaseModel):
    """A table of the run file. The docstring of an attribute is the description of the option in `weft init`, the JSON schema
    and the reference. None is only a default; it means "does not apply" and is not written to files."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


def described_fields(config_class: type[Config]) -> dict[str, FieldInfo]:
    """The options of a table with their descriptions, which a subclass inherits. They are read from the source code when they
    are needed: pydantic would do it for every class on import, a fifth of the startup time."""
    tables = [table for table in config_class.__mro__ if issubclass(table, Config) and table is not Config]
    for name, field in config_class.model_fields.items():
        if field.description is None:
            field.description = next((text for table in tables if (text := _attribute_docstrings(table).get(name))), None)
    return config_class.model_fields


@cache
def _attribute_docstrings(config_class: type[Config]) -> dict[str, str]:
    """The strings below the attributes of a class."""
    source, docstrings = textwrap.dedent(inspect.getsource(config_class)), dict[str, str]()
    body = next(node.body for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef))
    for pair in pairwise(body):
        match pair:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                docstrings[name] = inspect.cleandoc(text)
    return docstrings


class Choice:
    """Restricts an option to names: `Annotated[str, Choice(MIXERS)]` checks it and lists the names in the JSON schema. Names in
    `unlisted` are valid, but only written by weft itself."""

    def __init__(self, names: Collection[str], label: str = "value", *, unlisted: Collection[str] = ()) -> None:
        self.names, self.label, self.unlisted = names, label, unlisted  # not copied: a registry can grow

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"type": "string", "enum": list(self.names)}

    def _check(self, name: str) -> str:
        if name not in self.names and name not in self.unlisted:
            raise invalid("", *unknown_name(self.label, name, self.names))
        return name


def invalid(option: str, problem: str, fix: str = "") -> PydanticCustomError:
    """The error for a validator to raise. `option` is relative to its table; "" is the table itself."""
    # pydantic formats braces in a message, so text of the user must be passed as a value
    return PydanticCustomError("invalid", "{problem}", {"option": option, "problem": problem, "fix": fix})  # noqa: RUF027


def parse_config(config_class: type[T], values: Mapping[str, Any], *, prefix: str) -> T:
    """Validate `values` as a table. The first problem is raised as a ConfigError at `prefix.option`."""
    try:
        return config_class.model_validate(dict(values))
    except ValidationError as error:
        raise _config_error(config_class, error, prefix) from None


def _config_error(config_class: type[Config], error: ValidationError, prefix: str) -> ConfigError:
    # unknown options first: a misspelled name explains a missing option
    problems = sorted(error.errors(include_url=False), key=lambda problem: problem["type"] != "extra_forbidden")
    problem = problems[0]
    path, table = [prefix] if prefix else [], config_class
    for key in problem["loc"][:-1]:
        if isinstance(key, str) and key in table.model_fields:
            path.append(key)
            table = table_class(table.model_fields[key]) or table
    option = str(problem["loc"][-1]) if problem["loc"] else ""
    if problem["type"] == "extra_forbidden":
        return unknown_option(".".join(path), option, table.model_fields)
    if option in table.model_fields:
        path.append(option)
    if problem["type"] == "invalid":
        context = problem["ctx"]
        where = ".".join(filter(None, (*path, context["option"]))) or "run file"
        return ConfigError(where, context["problem"], context["fix"])
    # an option with a union of types has one problem per type
    depth = len(path) - bool(prefix)
    is_union = len(problem["loc"]) > depth and isinstance(problem["loc"][depth], str)
    alternatives = [other for other in problems if is_union and other["loc"][:depth] == problem["loc"][:depth]]
    return ConfigError(".".join(path) or "run file", describe_problem(problem, alternatives))


def describe_problem(problem: ErrorDetails, alternatives: Sequence[ErrorDetails] = ()) -> str:
    """The message for a problem that pydantic reports, such as `expected an integer, got 'abc'`."""
    error_type, value = problem["type"], _shorten(problem["input"])
    if error_type == "missing":
        return "required option is missing"
    if error_type in _LIMITS:
        words, name = _LIMITS[error_type]
        limit = problem["ctx"][name]
        return f"must be {words} {int(limit) if limit == int(limit) else limit}, got {value}"
    if error_type == "value_error":
        return problem["msg"].removeprefix("Value error, ")
    if error_type in ("too_short", "too_long"):
        limit = problem["ctx"]["min_length" if error_type == "too_short" else "max_length"]
        return f"expected {limit} values, got {value}"
    expected = [_expected(other) for other in (problem, *alternatives) if other["msg"].startswith("Input should be ")]
    text = f"expected {' or '.join(dict.fromkeys(expected)) or problem['msg']}, got {value}"
    is_quoted = isinstance(problem["input"], str) and _QUOTED_VALUE.fullmatch(problem["input"]) and "a string" not in text
    return f"{text}; remove the quotes" if is_quoted else text


def _expected(problem: ErrorDetails) -> str:
    text = problem["msg"].removeprefix("Input should be ")
    return "a table" if problem["type"] == "model_type" else _TYPE_NAMES.get(text, text)


def _shorten(value: Any) -> str:
    """`repr(value)`, limited to MAX_VALUE_CHARS."""
    text = repr(value)
    return text if len(text) <= MAX_VALUE_CHARS else f"{text[:MAX_VALUE_CHARS]}..."


def table_class(field: FieldInfo) -> type[Config] | None:
    """The class of a subtable; None if the option is not a table."""
    types = [field.annotation, *get_args(field.annotation)]
    return next((cls for cls in types if isinstance(cls, type) and issubclass(cls, Config)), None)


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file as nested dicts."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise ConfigError(path, "file not found", _similar_file(path)) from None
    except IsADirectoryError:
        raise ConfigError(path, "is a directory, not a run file", "weft init prints one") from None
    except OSError as error:
        raise ConfigError(path, f"cannot be read: {error.strerror}") from None
    if len(raw) > MAX_FILE_BYTES:
        raise ConfigError(path, f"larger than {MAX_FILE_BYTES >> 20} MB, so not a run file")
    if _TOO_DEEP.search(raw):
        raise ConfigError(path, f"a key has more than {MAX_KEY_PARTS} parts, so this is not a run file")
    try:
        return tomllib.loads(raw.decode())
    except UnicodeDecodeError as error:
        raise ConfigError(path, f"invalid UTF-8 (byte {error.start})", "convert the file to UTF-8") from None
    except (ValueError, RecursionError) as error:  # invalid TOML, numbers that are too long or tables that are too deep
        is_other = path.suffix not in ("", ".toml")
        raise (None if is_other else _quoting_error(path, raw)) or _toml_error(path, str(error)) from None


def _similar_file(path: Path) -> str:
    """The fix for a run file that does not exist: the name of a similar one in its directory, if any."""
    stems = sorted(file.stem for file in path.parent.glob("*.toml"))
    closest = next(iter(difflib.get_close_matches(path.stem, stems, n=1, cutoff=0.6)), None)
    return "" if closest is None else f"did you mean {path.with_name(f'{closest}.toml')}?"


def _toml_error(path: Path, message: str) -> ConfigError:
    if path.suffix not in ("", ".toml"):
        return ConfigError(path, "not a run file", "weft init prints one")
    position = _TOML_POSITION.search(message)
    line = "" if position is None or position[1] is None else f":{position[1]}"
    text = message if not line else _TOML_POSITION.sub("", message)
    if text == r"Illegal character '\n'":
        text = "a string has no closing quote"
    return ConfigError(f"{path}{line}", f"invalid TOML: {text}")


def _quoting_error(path: Path, raw: bytes) -> ConfigError | None:
    """The error for a string without quotes, a Windows path in double quotes, or the syntax of YAML or Python; None if the
    file has none of these."""
    for number, line in enumerate(raw.decode().split("\n"), 1):
        if (yaml := _YAML.match(line)) and _is_toml(f"{yaml[1]} = {yaml[2]}"):
            fix = f"write {yaml[1]} = {yaml[2].rstrip()}"
            return ConfigError(f"{path}:{number}", "invalid TOML: expected = after the name of an option", fix)
        match = _ASSIGNMENT.match(line)
        if match is None or _is_toml(line):
            continue
        if "\\" in match[2] and match[2].startswith('"'):
            return ConfigError(
                f"{path}:{number}",
                "invalid TOML: a backslash in double quotes starts an escape sequence",
                "use single quotes, or / in paths",
            )
        value = match[2].partition("#")[0].strip()
        if value in ("True", "False"):
            fix = f"write {match[1]} = {value.lower()}"
            return ConfigError(f"{path}:{number}", f"invalid TOML: unknown value {value}", fix)
        if value in ("None", "null"):
            fix = f"remove {match[1]} to use its default"
            return ConfigError(f"{path}:{number}", f"invalid TOML: unknown value {value}", fix)
        if _BARE_WORD.fullmatch(value):
            return ConfigError(f"{path}:{number}", "invalid TOML: a string needs quotes", f'write {match[1]} = "{value}"')
    return None


def _is_toml(line: str) -> bool:
    try:
        tomllib.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def override(values: Mapping[str, Any], overrides: Iterable[str], *, where: str = "set") -> dict[str, Any]:
    """A copy of `values` with each override `a.b=VALUE` applied, in order. A value is parsed as TOML; a bare word is a string.
    A budget replaces the previous one. `where` is the name of the argument in errors."""
    new = {key: dict(value) if isinstance(value, dict) else value for key, value in values.items()}
    for override in overrides:
        name, equals, text = override.partition("=")
        parts = name.strip().split(".")
        if not equals or not all(parts):
            raise ConfigError(where, f"expected KEY=VALUE, got {_shorten(override)}", "e.g. model.hidden_size=512")
        _set_option(new, parts, _parse_value(text), where)
    return new


def _set_option(values: dict[str, Any], parts: Sequence[str], value: Any, where: str) -> None:
    """Set one option. Nested tables on the path to it are copied."""
    table = values
    for depth, part in enumerate(parts[:-1], 1):
        inner = table.get(part, {})
        if not isinstance(inner, dict):
            raise ConfigError(where, f"{'.'.join(parts)} is not an option", f"{'.'.join(parts[:depth])} is not a table")
        table[part] = table = dict(inner)
    if parts[:-1] == ["train"] and parts[-1] in BUDGETS:
        for budget in BUDGETS:
            table.pop(budget, None)
    table[parts[-1]] = value


Overrides = Iterable[str] | Mapping[str, Any]


def _options(config: Mapping[str, Any], prefix: tuple[str, ...] = ()) -> Iterator[tuple[list[str], Any]]:
    """Path and value of every option of nested tables, whose keys may be dotted."""
    for name, value in config.items():
        path = (*prefix, *str(name).split("."))
        if isinstance(value, Mapping):
            yield from _options(value, path)
        else:
            yield list(path), value


def apply_overrides(values: Mapping[str, Any], overrides: Overrides) -> dict[str, Any]:
    """Apply the overrides that a Python caller passes.

    Args:
        values: The run file as nested dicts.
        overrides: Strings such as `"model.hidden_size=512"`, or a dict, nested or with dotted keys.

    Returns:
        The changed run file; `values` is not modified.

    Raises:
        ConfigError: An override does not have the form `a.b=VALUE`, or `a` is not a table.
    """
    if not isinstance(overrides, Mapping):
        return override(values, [overrides] if isinstance(overrides, str) else overrides, where="overrides")
    new = {key: dict(value) if isinstance(value, dict) else value for key, value in values.items()}
    for parts, value in _options(overrides):
        _set_option(new, parts, value, "overrides")
    return new


def read_run_file(run_file: str | Path | Mapping[str, Any], overrides: Overrides = ()) -> tuple[dict[str, Any], Path, str]:
    """Options of a run file with overrides, the directory that its paths are relative to, and its name. Paths in a dict are
    relative to the current directory, and its name is "run"."""
    if isinstance(run_file, Mapping):
        return apply_overrides(run_file, overrides), Path(), "run"
    path = Path(run_file)
    return apply_overrides(read_toml(path), overrides), path.parent, path.stem


def _parse_value(text: str) -> Any:
    """Parse a number, boolean, quoted string or array as TOML; anything else (words, paths, dates) is a string."""
    if _TOO_DEEP.search(text.encode(errors="replace")):
        return text
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    value = parsed.pop("value")
    return value if not parsed and isinstance(value, bool | int | float | str | list) else text


def to_dict(config: Config) -> dict[str, Any]:
    """A table as a dict without None, which TOML cannot store."""
    return config.model_dump(mode="python", exclude_none=True)


def describe_differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "", joiner: str = ", now ") -> list[str]:
    """`model.hidden_size: 128, now 256` for each option in which two resolved configurations differ."""
    differences: list[str] = []
    for key in sorted({*old, *new}):
        before, after, path = old.get(key), new.get(key), f"{prefix}.{key}" if prefix else key
        if isinstance(before, dict) and isinstance(after, dict):
            differences += describe_differences(before, after, path, joiner)
        elif before != after:
            values = ("not set" if value is None else value for value in (before, after))
            differences.append(f"{path}: {joiner.join(map(str, values))}")
    return differences
