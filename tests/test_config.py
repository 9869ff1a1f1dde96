"""Parsing of run files: values, overrides and error messages."""

from __future__ import annotations

import json
import tomllib
from typing import Annotated, Literal, Self

import pytest
import tomli_w
from pydantic import Field, ValidationError, model_validator

from weft import errors
from weft.config import (
    Choice,
    Config,
    apply_overrides,
    describe_differences,
    described_fields,
    invalid,
    override,
    parse_config,
    read_toml,
    to_dict,
)
from weft.errors import ConfigError, suggest, unknown_name

KINDS = {"lstm": 1, "gru": 2, "attention": 3}


class InnerTable(Config):
    kind: Annotated[str, Choice(KINDS, "kind")] = "lstm"
    width: int = Field(8, ge=1)
    also: Annotated[str, Choice(("a", "b"))] | None = None


class OuterTable(Config):
    steps: int
    lr: float = 0.1
    """Learning rate."""
    clip: float | Literal["none"] = 1.0
    files: list[str] = Field(default_factory=list)
    fast: bool = False
    inner: InnerTable = InnerTable()
    other: InnerTable | None = None

    @model_validator(mode="after")
    def check_steps(self) -> Self:
        if self.steps > 1000:
            raise invalid("steps", f"must be at most 1000, got {self.steps}", "train less")
        return self


def refused(values: dict[str, object], at: str = "train") -> str:
    with pytest.raises(ConfigError) as caught:
        parse_config(OuterTable, values, prefix=at)
    assert caught.value.exit_code == 2
    assert caught.value.__cause__ is None and caught.value.__suppress_context__  # one line, no pydantic behind it
    return str(caught.value)


MESSAGES = [
    ({}, "train.steps: required option is missing"),
    (
        {"step": 1},
        "train.step: unknown option; did you mean 'steps'?",
    ),
    ({"steps": 1, "zzz": 1}, "train.zzz: unknown option; choose from steps, lr, clip, files, fast, inner, other"),
    ({"steps": True}, "train.steps: expected an integer, got True"),
    ({"steps": 1.0}, "train.steps: expected an integer, got 1.0"),
    ({"steps": "1"}, "train.steps: expected an integer, got '1'; remove the quotes"),
    ({"steps": 2000}, "train.steps: must be at most 1000, got 2000; train less"),
    ({"steps": 1, "lr": "fast"}, "train.lr: expected a number, got 'fast'"),
    ({"steps": 1, "lr": float("inf")}, "train.lr: expected a finite number, got inf"),
    ({"steps": 1, "clip": float("nan")}, "train.clip: expected a finite number or 'none', got nan"),
    ({"steps": 1, "clip": "non"}, "train.clip: expected a number or 'none', got 'non'"),
    ({"steps": 1, "fast": 1}, "train.fast: expected true or false, got 1"),
    ({"steps": 1, "files": "a.txt"}, "train.files: expected a list, got 'a.txt'"),
    ({"steps": 1, "files": ["a.txt", 2]}, "train.files: expected a string, got 2"),
    ({"steps": 1, "inner": 3}, "train.inner: expected a table, got 3"),
    ({"steps": 1, "inner": {"width": 0}}, "train.inner.width: must be at least 1, got 0"),
    (
        {"steps": 1, "inner": {"widht": 3}},
        "train.inner.widht: unknown option; did you mean 'width'?",
    ),
    (
        {"steps": 1, "other": {"widht": 3}},
        "train.other.widht: unknown option; did you mean 'width'?",
    ),
    (
        {"steps": 1, "inner": {"kind": "gur"}},
        "train.inner.kind: unknown kind 'gur'; did you mean 'gru'?",
    ),
    ({"steps": 1, "inner": {"kind": "{x} %s"}}, "train.inner.kind: unknown kind '{x} %s'; choose from lstm, gru, attention"),
    ({"steps": 1, "inner": {"kind": 3}}, "train.inner.kind: expected a string, got 3"),
    ({"steps": 1, "inner": {"also": "c"}}, "train.inner.also: unknown value 'c'; choose from a, b"),
    ({"steps": 1, "other": {"also": "c"}}, "train.other.also: unknown value 'c'; choose from a, b"),
]


@pytest.mark.parametrize(("values", "message"), MESSAGES, ids=[message.split(" not ")[0] for _, message in MESSAGES])
def test_invalid_values_and_their_messages(values, message):
    assert refused(values) == message


def test_without_a_prefix_errors_name_the_option_alone():
    assert refused({"steps": 2.5}, at="") == "steps: expected an integer, got 2.5"
    assert refused({"steps": 1, "inner": {"width": 0}}, at="") == "inner.width: must be at least 1, got 0"
    assert refused({"stepz": 1}, at="").startswith("stepz: unknown option; did you mean 'steps'?")
    assert refused({"steps": 2000}, at="") == "steps: must be at most 1000, got 2000; train less"


def test_a_config_round_trips_and_is_immutable():
    table = parse_config(OuterTable, {"steps": 3, "lr": 1, "inner": {"kind": "gru"}}, prefix="train")
    assert (table.steps, table.lr, table.inner.kind) == (3, 1.0, "gru")
    values = to_dict(table)
    assert "other" not in values and "also" not in values["inner"]  # TOML has no null
    assert parse_config(OuterTable, tomllib.loads(tomli_w.dumps(values)), prefix="train") == table
    with pytest.raises(ValidationError):
        table.steps = 4


def test_the_schema_lists_the_names():
    schema = OuterTable.model_json_schema()
    assert schema["$defs"]["InnerTable"]["properties"]["kind"]["enum"] == ["lstm", "gru", "attention"]
    assert '["a", "b"]' in json.dumps(schema["$defs"]["InnerTable"]["properties"]["also"])
    assert schema["additionalProperties"] is False


def test_unknown_names_suggest_the_nearest_known_name():
    assert unknown_name("task", "taging", ["lm", "tagging"]) == ("unknown task 'taging'", "did you mean 'tagging'?")
    assert suggest("q", ["lm", "tagging"]) == "choose from lm, tagging"
    assert suggest("tagg", iter(["lm", "tagging"])) == "did you mean 'tagging'?"
    assert suggest("q", [f"name{number}" for number in range(13)]) == ""  # too many to list


class ChildTable(OuterTable):
    lr: float = 0.5
    more: int = 1
    """A new option."""


def test_attribute_docstrings_are_descriptions_and_are_inherited():
    assert described_fields(OuterTable)["lr"].description == described_fields(ChildTable)["lr"].description == "Learning rate."
    assert (described_fields(ChildTable)["more"].description, ChildTable(steps=1).lr) == ("A new option.", 0.5)


def test_exit_codes():
    codes = {
        "WeftError": 1,
        "UsageError": 2,
        "ConfigError": 2,
        "DataError": 3,
        "ModelError": 4,
        "ResourceError": 5,
        "DivergedError": 6,
        "GroupError": 7,
    }
    assert {name: getattr(errors, name).exit_code for name in codes} == codes
    assert all(issubclass(getattr(errors, name), errors.WeftError) for name in codes)
    assert issubclass(errors.ConfigError, errors.UsageError)


# ---- files


def test_a_run_file_is_read_as_nested_dicts(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text('task = "lm"\n[model]\nhidden_size = 3\n[model.encoder]\nnum_layers = 1\n# ü\n', encoding="utf-8")
    assert read_toml(path) == {"task": "lm", "model": {"hidden_size": 3, "encoder": {"num_layers": 1}}}


def test_unreadable_run_files(tmp_path):
    missing, folder, latin, broken = tmp_path / "no.toml", tmp_path, tmp_path / "latin.toml", tmp_path / "broken.toml"
    latin.write_bytes("a = 'ü'".encode("latin-1"))
    broken.write_text("width = \n")
    for path, message in (
        (missing, ": file not found"),
        (folder, ": is a directory, not a run file; weft init prints one"),
        (latin, ": invalid UTF-8 (byte 5); convert the file to UTF-8"),
        (broken, ":1: invalid TOML: Invalid value"),
    ):
        with pytest.raises(ConfigError) as caught:
            read_toml(path)
        assert str(caught.value) == f"{path}{message}"


# ---- overrides


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("512", 512),
        ("-1", -1),
        ("1e-3", 1e-3),
        ("true", True),
        ("gru", "gru"),
        ("'512'", "512"),
        ('"a b"', "a b"),
        ("[1, 2]", [1, 2]),
        ("corpus/a=b.txt", "corpus/a=b.txt"),
        ("2016-01-01", "2016-01-01"),
        ("12:30:00", "12:30:00"),
        ("{a = 1}", "{a = 1}"),
        (".001", ".001"),
        ("", ""),
        (" 3 ", 3),
    ],
)
def test_override_values_are_toml_or_strings(text, value):
    result = override({}, [f"model.x={text}"])["model"]["x"]
    assert result == value and type(result) is type(value)


def test_overrides_work_at_any_depth_on_a_copy():
    values = {"task": "lm", "model": {"hidden_size": 3, "encoder": {"num_layers": 1, "num_heads": 2}}}
    new = override(
        values, ["model.encoder.num_layers=4", "model.hidden_size=5", "train.lr=1", " task =tagging", "model.hidden_size=6"]
    )
    assert new == {
        "task": "tagging",
        "model": {"hidden_size": 6, "encoder": {"num_layers": 4, "num_heads": 2}},
        "train": {"lr": 1},
    }
    assert values == {"task": "lm", "model": {"hidden_size": 3, "encoder": {"num_layers": 1, "num_heads": 2}}}


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("model.hidden_size", "expected KEY=VALUE, got 'model.hidden_size'; e.g. model.hidden_size=512"),
        ("=3", "expected KEY=VALUE, got '=3'; e.g. model.hidden_size=512"),
        ("model..width=3", "expected KEY=VALUE, got 'model..width=3'; e.g. model.hidden_size=512"),
        ("task.arch=3", "task.arch is not an option; task is not a table"),
        ("model.hidden_size.x=3", "model.hidden_size.x is not an option; model.hidden_size is not a table"),
    ],
)
def test_invalid_overrides(setting, message):
    values = {"task": "lm", "model": {"hidden_size": 3}}
    for where, apply in (("set", override), ("overrides", apply_overrides)):
        with pytest.raises(ConfigError) as caught:
            apply(values, [setting])
        assert str(caught.value) == f"{where}: {message}"


def test_differences_are_named_option_by_option():
    old = {"task": "lm", "model": {"hidden_size": 128, "num_heads": 4, "encoder": {"num_layers": 1}}, "seed": 0}
    new = {"task": "lm", "model": {"hidden_size": 256, "encoder": {"num_layers": 2}, "tie_embeddings": False}, "seed": 0}
    assert describe_differences(old, new) == [
        "model.encoder.num_layers: 1, now 2",
        "model.hidden_size: 128, now 256",
        "model.num_heads: 4, now not set",
        "model.tie_embeddings: not set, now False",
    ]
    assert describe_differences(old, old) == []
    assert describe_differences({"a": {"b": 1}}, {"a": 2}, "run") == ["run.a: {'b': 1}, now 2"]
