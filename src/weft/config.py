"""The run file: strict typed tables, errors that name the option, overrides. Tables are defined next to what they configure."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, ErrorDetails, PydanticCustomError, core_schema

from weft.errors import ConfigError, unknown_name, unknown_option

T = TypeVar("T", bound="Config")
BUDGETS = ("max_steps", "max_tokens", "max_epochs", "max_minutes")  # options of [train]; a run has one of them
MAX_FILE_BYTES = 1 << 20  # of a run file
MAX_VALUE_CHARS = 80  # of an invalid value in a message
MAX_KEY_PARTS = 100  # of a dotted key; the time that parsing one takes grows with their square
_PART = rb"(?:[\w-]++|\"[^\"\n]*+\"|'[^'\n]*+')[ \t]*+"
_TOO_DEEP = re.compile(rb"(?<![\w-])%s(?:\.[ \t]*+%s){%d}" % (_PART, _PART, MAX_KEY_PARTS))
_ASSIGNMENT = re.compile(r"[ \t]*([\w.-]{1,100})[ \t]*=[ \t]*(.*)")
_BARE_WORD = re.compile(r"[^\s\"'\[\]{}=,][^\"'\[\]{}=,]{0,200}")
_TOML_POSITION = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)$")  # how tomllib ends its messages
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
    """A table of the run file. The docstring of an attribute is the description of the option; `weft init`, the JSON schema and
    the reference print it. None means "does not apply": it is only ever a default, and files leave it out."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """An option that a subclass gives another default keeps its description."""
        super().__pydantic_init_subclass__(**kwargs)
        for name, field in cls.model_fields.items():
            if field.description is None:
                inherited = (base.model_fields.get(name) for base in cls.__mro__[1:] if issubclass(base, Config))
                field.description = next((other.description for other in inherited if other and other.description), None)


class Choice:
    """Marks an option that names a part: `Annotated[str, Choice(MIXERS)]` checks it and lists the names in the schema. Names in
    `unlisted` are valid, but only weft itself writes them."""

    def __init__(self, names: Collection[str], label: str = "value", *, unlisted: Collection[str] = ()) -> None:
        self.names, self.label, self.unlisted = names, label, unlisted  # not copied: a registry may grow

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"type": "string", "enum": list(self.names)}

    def _check(self, name: str) -> str:
        if name not in self.names and name not in self.unlisted:
            raise invalid("", *unknown_name(self.label, name, self.names))
        return name


def invalid(option: str, problem: str, fix: str = "") -> PydanticCustomError:
    """The error that a validator raises: the invalid option of its table ("" for the table itself), the problem, the fix."""
    # pydantic formats the braces of a message: text that the user wrote must go in as a value
    return PydanticCustomError("invalid", "{problem}", {"option": option, "problem": problem, "fix": fix})  # noqa: RUF027


def parse_config(config_class: type[T], values: Mapping[str, Any], *, at: str) -> T:
    """`values` as a validated table. The first problem is raised as a ConfigError whose `where` is `at.option`."""
    try:
        return config_class.model_validate(dict(values))
    except ValidationError as error:
        raise _explain_error(config_class, error, at) from None


def _explain_error(config_class: type[Config], error: ValidationError, at: str) -> ConfigError:
    # a misspelled name explains a missing one, so it comes first
    problems = sorted(error.errors(include_url=False), key=lambda problem: problem["type"] != "extra_forbidden")
    problem = problems[0]
    path, owner = [at] if at else [], config_class
    for step in problem["loc"][:-1]:
        if isinstance(step, str) and step in owner.model_fields:
            path.append(step)
            owner = table_class(owner.model_fields[step]) or owner
    option = str(problem["loc"][-1]) if problem["loc"] else ""
    if problem["type"] == "extra_forbidden":
        return unknown_option(".".join(path), option, owner.model_fields)
    if option in owner.model_fields:
        path.append(option)
    if problem["type"] == "invalid":
        context = problem["ctx"]
        where = ".".join(filter(None, (*path, context["option"]))) or "run file"
        return ConfigError(where, context["problem"], context["fix"])
    # an option of several types has a problem with each
    depth = len(path) - bool(at)
    is_union = len(problem["loc"]) > depth and isinstance(problem["loc"][depth], str)
    alternatives = [other for other in problems if is_union and other["loc"][:depth] == problem["loc"][:depth]]
    return ConfigError(".".join(path) or "run file", describe_problem(problem, alternatives))


def describe_problem(problem: ErrorDetails, alternatives: Sequence[ErrorDetails] = ()) -> str:
    """A problem that pydantic reports, as a message states it: `expected an integer, got 'abc'`."""
    kind, value = problem["type"], _short(problem["input"])
    if kind == "missing":
        return "required option is missing"
    if kind in _LIMITS:
        words, name = _LIMITS[kind]
        limit = problem["ctx"][name]
        return f"must be {words} {int(limit) if limit == int(limit) else limit}, got {value}"
    if kind == "value_error":
        return problem["msg"].removeprefix("Value error, ")
    if kind in ("too_short", "too_long"):
        limit = problem["ctx"]["min_length" if kind == "too_short" else "max_length"]
        return f"expected {limit} values, got {value}"
    expected = [_expected(other) for other in (problem, *alternatives) if other["msg"].startswith("Input should be ")]
    return f"expected {' or '.join(dict.fromkeys(expected)) or problem['msg']}, got {value}"


def _expected(problem: ErrorDetails) -> str:
    text = problem["msg"].removeprefix("Input should be ")
    return "a table" if problem["type"] == "model_type" else _TYPE_NAMES.get(text, text)


def _short(value: Any) -> str:
    """A value as a message shows it: the line stays readable, whatever the value is."""
    text = repr(value)
    return text if len(text) <= MAX_VALUE_CHARS else f"{text[:MAX_VALUE_CHARS]}..."


def table_class(field: FieldInfo) -> type[Config] | None:
    """The class of the subtable that an option is, if it is one."""
    kinds = [field.annotation, *get_args(field.annotation)]
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Config)), None)


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file as nested dicts."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise ConfigError(path, "file not found") from None
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
    except (ValueError, RecursionError) as error:  # numbers too long, or tables too deep, for Python
        raise _quoting_error(path, raw) or _toml_error(path, str(error)) from None


def _toml_error(path: Path, message: str) -> ConfigError:
    position = _TOML_POSITION.search(message)
    line = "" if position is None or position[1] is None else f":{position[1]}"
    text = message if not line else _TOML_POSITION.sub("", message)
    return ConfigError(f"{path}{line}", f"invalid TOML: {text}")


def _quoting_error(path: Path, raw: bytes) -> ConfigError | None:
    """The error for a file with a string without quotes, or a Windows path in double quotes; None for any other file."""
    for number, line in enumerate(raw.decode().split("\n"), 1):
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
    """`values` with each `a.b=VALUE` set, in order. A value is parsed as TOML, a bare word is a string. A budget replaces the
    one before it. `where` is the argument that the overrides come from."""
    new = {key: dict(value) if isinstance(value, dict) else value for key, value in values.items()}
    for override in overrides:
        name, equals, text = override.partition("=")
        parts = name.strip().split(".")
        if not equals or not all(parts):
            raise ConfigError(where, f"expected KEY=VALUE, got {_short(override)}", "e.g. model.hidden_size=512")
        _set_option(new, parts, _value(text), where)
    return new


def _set_option(values: dict[str, Any], parts: Sequence[str], value: Any, where: str) -> None:
    """Set one option of nested tables, which are copied on the way."""
    owner = values
    for depth, part in enumerate(parts[:-1], 1):
        inner = owner.get(part, {})
        if not isinstance(inner, dict):
            raise ConfigError(where, f"{'.'.join(parts)} is not an option", f"{'.'.join(parts[:depth])} is not a table")
        owner[part] = owner = dict(inner)
    if parts[:-1] == ["train"] and parts[-1] in BUDGETS:
        for budget in BUDGETS:
            owner.pop(budget, None)
    owner[parts[-1]] = value


Overrides = Iterable[str] | Mapping[str, Any]


def _options(config: Mapping[str, Any], at: tuple[str, ...] = ()) -> Iterator[tuple[list[str], Any]]:
    """Every option of nested tables, whose keys may be dotted, with the path to it."""
    for name, value in config.items():
        path = (*at, *str(name).split("."))
        if isinstance(value, Mapping):
            yield from _options(value, path)
        else:
            yield list(path), value


def apply_overrides(values: Mapping[str, Any], overrides: Overrides) -> dict[str, Any]:
    """A run file with options changed, as a Python caller passes them.

    Args:
        values: The run file as nested dicts.
        overrides: Strings such as `"model.hidden_size=512"`, or a dict, nested or with dotted keys.

    Returns:
        The changed run file; `values` is not modified.

    Raises:
        ConfigError: An override is not of the form `a.b=VALUE`, or names a value where a table is needed.
    """
    if not isinstance(overrides, Mapping):
        return override(values, [overrides] if isinstance(overrides, str) else overrides, where="overrides")
    new = {key: dict(value) if isinstance(value, dict) else value for key, value in values.items()}
    for parts, value in _options(overrides):
        _set_option(new, parts, value, "overrides")
    return new


def read_run_file(run_file: str | Path | Mapping[str, Any], overrides: Overrides = ()) -> tuple[dict[str, Any], Path, str]:
    """A run file as a Python caller passes it: its options, the directory that its paths are relative to, and its name. The
    paths of a dict are relative to the current directory, and its name is "run"."""
    if isinstance(run_file, Mapping):
        return apply_overrides(run_file, overrides), Path(), "run"
    path = Path(run_file)
    return apply_overrides(read_toml(path), overrides), path.parent, path.stem


def _value(text: str) -> Any:
    """A number, boolean, quoted string or array as TOML parses it; anything else (words, paths, dates) is a string."""
    if _TOO_DEEP.search(text.encode(errors="replace")):
        return text
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    value = parsed.pop("value")
    return value if not parsed and isinstance(value, bool | int | float | str | list) else text


def to_dict(config: Config) -> dict[str, Any]:
    """A table as TOML can store it: None is left out."""
    return config.model_dump(mode="python", exclude_none=True)


def describe_differences(old: Mapping[str, Any], new: Mapping[str, Any], at: str = "", joiner: str = ", now ") -> list[str]:
    """`model.hidden_size: 128, now 256` for each option in which two resolved configurations differ."""
    differences: list[str] = []
    for key in sorted({*old, *new}):
        before, after, path = old.get(key), new.get(key), f"{at}.{key}" if at else key
        if isinstance(before, dict) and isinstance(after, dict):
            differences += describe_differences(before, after, path, joiner)
        elif before != after:
            values = ("not set" if value is None else value for value in (before, after))
            differences.append(f"{path}: {joiner.join(map(str, values))}")
    return differences
