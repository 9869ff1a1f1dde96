"""The run file: strict typed tables, helpful refusals, overrides. It knows no table; each lives beside what it configures."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from weft.errors import ConfigError, unknown_name, unknown_option

T = TypeVar("T", bound="Config")
BUDGETS = ("max_steps", "max_tokens", "max_epochs", "max_minutes")  # options of [train] of which a run has one
MAX_BYTES = 1 << 20  # bytes of a run file
MAX_VALUE_CHARS = 80  # characters of a wrong value
MAX_KEY_PARTS = 100  # of a dotted key; the time that reading one takes grows with their square
_PART = rb"(?:[\w-]++|\"[^\"\n]*+\"|'[^'\n]*+')[ \t]*+"
_TOO_DEEP = re.compile(rb"(?<![\w-])%s(?:\.[ \t]*+%s){%d}" % (_PART, _PART, MAX_KEY_PARTS))
_ASSIGNED = re.compile(r"[ \t]*([\w.-]{1,100})[ \t]*=[ \t]*(.*)")
_BARE = re.compile(r"[^\s\"'\[\]{}=,][^\"'\[\]{}=,]{0,200}")


class Config(BaseModel):
    """A table of the run file. None means "does not apply", is only ever a default, and is left out of files."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class Choice:
    """Marks an option that names a part: `Annotated[str, OneOf(MIXERS)]` checks it and lists the names in the schema."""

    def __init__(self, names: Collection[str], label: str = "choice") -> None:
        self.names, self.label = names, label  # a registry that grows is asked as it is then

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"type": "string", "enum": list(self.names)}

    def _check(self, name: str) -> str:
        if name not in self.names:
            raise invalid("", *unknown_name(self.label, name, self.names))
        return name


def invalid(option: str, problem: str, fix: str = "") -> PydanticCustomError:
    """What a validator raises: the option of its table that is wrong ("" for the table itself), the problem, the fix."""
    # the braces of a message are a template to pydantic: what the user wrote goes in as a value
    return PydanticCustomError("invalid", "{problem}", {"option": option, "problem": problem, "fix": fix})  # noqa: RUF027


def parse_config(config_class: type[T], values: Mapping[str, Any], *, at: str) -> T:
    """`values` as a checked table; the first fault is raised as `at.option: what was seen, what to do`."""
    try:
        return config_class.model_validate(dict(values))
    except ValidationError as error:
        raise _explain_error(config_class, error, at) from None


def _explain_error(config_class: type[Config], error: ValidationError, at: str) -> ConfigError:
    # a misspelt name explains a missing one: say that first
    problems = sorted(error.errors(include_url=False), key=lambda problem: problem["type"] != "extra_forbidden")
    problem = problems[0]
    place, owner = [at] if at else [], config_class
    for step in problem["loc"][:-1]:
        if isinstance(step, str) and step in owner.model_fields:
            place.append(step)
            owner = _inner(owner.model_fields[step]) or owner
    option = str(problem["loc"][-1]) if problem["loc"] else ""
    if problem["type"] == "extra_forbidden":
        return unknown_option(".".join(place), option, owner.model_fields)
    if option in owner.model_fields:
        place.append(option)
    where = ".".join(place) or "run file"
    text = problem["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    if problem["type"] == "missing":
        return ConfigError(where, "required option is missing")
    if problem["type"] == "invalid":
        details = problem["ctx"]
        where = ".".join(filter(None, (where if place else "", details["option"]))) or "run file"
        return ConfigError(where, details["problem"], details["fix"])
    if problem["type"] == "value_error":
        return ConfigError(where, text)
    return ConfigError(where, f"expected {text}, got {_short(problem['input'])}")


def _short(value: Any) -> str:
    """A value as a message shows it: whatever was given, the line stays readable."""
    text = repr(value)
    return text if len(text) <= MAX_VALUE_CHARS else f"{text[:MAX_VALUE_CHARS]}..."


def _inner(field: FieldInfo) -> type[Config] | None:
    """The table that an option holds, if it holds one."""
    kinds = [field.annotation, *get_args(field.annotation)]
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Config)), None)


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file as nested dicts."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(path, f"can't be read: {error.strerror}") from None
    if len(raw) > MAX_BYTES:
        raise ConfigError(path, f"is larger than {MAX_BYTES >> 20} MB", "no run file is")
    if _TOO_DEEP.search(raw):
        raise ConfigError(path, f"a key has more than {MAX_KEY_PARTS} parts", "no run file has tables so deep")
    try:
        return tomllib.loads(raw.decode())
    except UnicodeDecodeError as error:
        raise ConfigError(path, f"is not UTF-8 (byte {error.start})", "a run file is a UTF-8 text") from None
    except (ValueError, RecursionError) as error:  # numbers too long, or tables too deep, for Python
        raise ConfigError("", _unquoted(path, raw) or f"{path}: is not TOML: {error}") from None


def _unquoted(path: Path, raw: bytes) -> str | None:
    """What is wrong with a file of which a line has a string without quotes, or a Windows path between double ones."""
    for number, line in enumerate(raw.decode().split("\n"), 1):
        found = _ASSIGNED.match(line)
        if found is None or _is_toml(line):
            continue
        if "\\" in found[2] and found[2].startswith('"'):
            fix = "write the string in single quotes, or a path with /"
            return f"{path}: line {number}: a backslash between double quotes begins an escape; {fix}"
        if _BARE.fullmatch(found[2].partition("#")[0].strip()):
            return f'{path}: line {number}: a string needs quotes: {found[1]} = "{found[2].partition("#")[0].strip()}"'
    return None


def _is_toml(line: str) -> bool:
    try:
        tomllib.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def override(values: Mapping[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """`values` with each `a.b=VALUE` set, in order: a value as TOML reads it, bare words as strings. A run has one budget: one
    that is set replaces the one before it."""
    new = {key: dict(value) if isinstance(value, dict) else value for key, value in values.items()}
    for override in overrides:
        name, equals, text = override.partition("=")
        parts = name.strip().split(".")
        if not equals or not all(parts):
            raise ConfigError(f"--set {override}", "must look like model.hidden_size=512")
        _put(new, parts, _value(text), f"--set {override}")
    return new


def _put(values: dict[str, Any], parts: Sequence[str], value: Any, told: str) -> None:
    """Sets one option of nested tables, which are copied on the way."""
    owner = values
    for part in parts[:-1]:
        inner = owner.get(part, {})
        if not isinstance(inner, dict):
            raise ConfigError(told, f"{part} is a value, not a table")
        owner[part] = owner = dict(inner)
    if parts[:-1] == ["train"] and parts[-1] in BUDGETS:
        for budget in BUDGETS:
            owner.pop(budget, None)
    owner[parts[-1]] = value


Overrides = Iterable[str] | Mapping[str, Any]


def _options(config: Mapping[str, Any], at: tuple[str, ...] = ()) -> Iterator[tuple[list[str], Any]]:
    """Every option of nested tables, whose keys may have dots, with the path to it."""
    for name, value in config.items():
        path = (*at, *str(name).split("."))
        if isinstance(value, Mapping):
            yield from _options(value, path)
        else:
            yield list(path), value


def apply_overrides(values: Mapping[str, Any], overrides: Overrides) -> dict[str, Any]:
    """A run file with options changed, as a Python caller gives them.

    Args:
        values: The run file as nested dicts.
        overrides: Strings such as `"model.hidden_size=512"`, or a dict, nested or with dotted keys.

    Returns:
        The changed run file; `values` stays as it is.

    Raises:
        ConfigError: An override is no `a.b=VALUE`, or names a value where a table should be.
    """
    if not isinstance(overrides, Mapping):
        return override(values, [overrides] if isinstance(overrides, str) else overrides)
    new = {key: dict(value) if isinstance(value, dict) else value for key, value in values.items()}
    for parts, value in _options(overrides):
        _put(new, parts, value, ".".join(parts))
    return new


def read_run_file(run_file: str | Path | Mapping[str, Any], overrides: Overrides = ()) -> tuple[dict[str, Any], Path, str]:
    """A run file that a Python caller gives: its options, the folder that its paths are seen from, and its name. A dict is seen
    from here, and is called "run"."""
    if isinstance(run_file, Mapping):
        return apply_overrides(run_file, overrides), Path(), "run"
    path = Path(run_file)
    return apply_overrides(read_toml(path), overrides), path.parent, path.stem


def _value(text: str) -> Any:
    """What TOML reads as number, boolean, quoted string or array is that; all else (words, paths, dates) is a string."""
    if _TOO_DEEP.search(text.encode(errors="replace")):
        return text
    try:
        found = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    value = found.pop("value")
    return value if not found and isinstance(value, bool | int | float | str | list) else text


def to_dict(config: Config) -> dict[str, Any]:
    """A table as what TOML can hold: None is left out."""
    return config.model_dump(mode="python", exclude_none=True)


def describe_differences(old: Mapping[str, Any], new: Mapping[str, Any], at: str = "") -> list[str]:
    """`model.hidden_size: 128 there, 256 here` for every option that two resolved files disagree about."""
    found: list[str] = []
    for key in sorted({*old, *new}):
        a, b, place = old.get(key), new.get(key), f"{at}.{key}" if at else key
        if isinstance(a, dict) and isinstance(b, dict):
            found += describe_differences(a, b, place)
        elif a != b:
            found.append(f"{place}: {'nothing' if a is None else a} there, {'nothing' if b is None else b} here")
    return found
