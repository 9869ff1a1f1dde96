"""The run file: what is read, what is refused and in which words."""

from __future__ import annotations

import json
import tomllib
from typing import Annotated, Literal, Self

import pytest
import tomli_w
from pydantic import Field, ValidationError, model_validator

from weft import errors
from weft.config import Choice, Config, describe_differences, override, parse_config, read_toml, to_dict, unknown_name
from weft.errors import ConfigError, suggest

KINDS = {"lstm": 1, "gru": 2, "attention": 3}


class InnerTable(Config):
    kind: Annotated[str, Choice(KINDS, "kind")] = "lstm"
    width: int = Field(8, ge=1)
    also: Annotated[str, Choice(("a", "b"))] | None = None


class OuterTable(Config):
    steps: int
    lr: float = 0.1
    clip: float | Literal["none"] = 1.0
    files: list[str] = Field(default_factory=list)
    fast: bool = False
    inner: InnerTable = InnerTable()
    other: InnerTable | None = None

    @model_validator(mode="after")
    def fits(self) -> Self:
        if self.steps > 1000:
            raise ValueError(f"steps={self.steps} are too many")
        return self


def refused(values: dict[str, object], at: str = "train") -> str:
    with pytest.raises(ConfigError) as caught:
        parse_config(OuterTable, values, at=at)
    assert caught.value.exit_code == 2
    assert caught.value.__cause__ is None and caught.value.__suppress_context__  # one line, no pydantic behind it
    return str(caught.value)


MESSAGES = [
    ({}, "train.max_steps: is needed and not given"),
    (
        {"step": 1},
        "train.step: no such option; did you mean 'steps'? known: steps, lr, clip, files, fast, inner, other",
    ),
    ({"steps": 1, "zzz": 1}, "train.zzz: no such option; known: steps, lr, clip, files, fast, inner, other"),
    ({"steps": True}, "train.max_steps: must be a valid integer, not True"),
    ({"steps": 1.0}, "train.max_steps: must be a valid integer, not 1.0"),
    ({"steps": "1"}, "train.max_steps: must be a valid integer, not '1'"),
    ({"steps": 2000}, "train: steps=2000 are too many"),
    ({"max_steps": 1, "lr": "fast"}, "train.lr: must be a valid number, not 'fast'"),
    ({"max_steps": 1, "lr": float("inf")}, "train.lr: must be a finite number, not inf"),
    ({"max_steps": 1, "max_grad_norm": float("nan")}, "train.max_grad_norm: must be a finite number, not nan"),
    ({"max_steps": 1, "max_grad_norm": "non"}, "train.max_grad_norm: must be a valid number, not 'non'"),
    ({"steps": 1, "fast": 1}, "train.fast: must be a valid boolean, not 1"),
    ({"steps": 1, "files": "a.txt"}, "train.files: must be a valid list, not 'a.txt'"),
    ({"steps": 1, "files": ["a.txt", 2]}, "train.files: must be a valid string, not 2"),
    ({"steps": 1, "inner": 3}, "train.inner: must be a valid dictionary or instance of InnerTable, not 3"),
    ({"steps": 1, "inner": {"width": 0}}, "train.inner.width: must be greater than or equal to 1, not 0"),
    (
        {"steps": 1, "inner": {"widht": 3}},
        "train.inner.widht: no such option; did you mean 'width'? known: kind, width, also",
    ),
    (
        {"steps": 1, "other": {"widht": 3}},
        "train.other.widht: no such option; did you mean 'width'? known: kind, width, also",
    ),
    (
        {"steps": 1, "inner": {"kind": "gur"}},
        "train.inner.kind: no such kind 'gur'; did you mean 'gru'? known: lstm, gru, attention",
    ),
    ({"steps": 1, "inner": {"kind": "{x} %s"}}, "train.inner.kind: no such kind '{x} %s'; known: lstm, gru, attention"),
    ({"steps": 1, "inner": {"kind": 3}}, "train.inner.kind: must be a valid string, not 3"),
    ({"steps": 1, "inner": {"also": "c"}}, "train.inner.also: no such choice 'c'; known: a, b"),
    ({"steps": 1, "other": {"also": "c"}}, "train.other.also: no such choice 'c'; known: a, b"),
]


@pytest.mark.parametrize(("values", "message"), MESSAGES, ids=[message.split(" not ")[0] for _, message in MESSAGES])
def test_what_is_refused_and_in_which_words(values, message):
    assert refused(values) == message


def test_without_a_place_an_option_stands_alone():
    assert refused({"steps": 2.5}, at="") == "steps: must be a valid integer, not 2.5"
    assert refused({"steps": 1, "inner": {"width": 0}}, at="") == "inner.width: must be greater than or equal to 1, not 0"
    assert refused({"stepz": 1}, at="").startswith("stepz: no such option; did you mean 'steps'?")
    assert refused({"steps": 2000}, at="") == "run file: steps=2000 are too many"


def test_a_table_reads_back_equal_and_cannot_be_changed():
    table = parse_config(OuterTable, {"steps": 3, "lr": 1, "inner": {"kind": "gru"}}, at="train")
    assert (table.steps, table.lr, table.inner.kind) == (3, 1.0, "gru")
    values = to_dict(table)
    assert "other" not in values and "also" not in values["inner"]  # TOML has no null
    assert parse_config(OuterTable, tomllib.loads(tomli_w.dumps(values)), at="train") == table
    with pytest.raises(ValidationError):
        table.steps = 4


def test_the_schema_lists_the_names():
    schema = OuterTable.model_json_schema()
    assert schema["$defs"]["InnerTable"]["properties"]["kind"]["enum"] == ["lstm", "gru", "attention"]
    assert '["a", "b"]' in json.dumps(schema["$defs"]["InnerTable"]["properties"]["also"])
    assert schema["additionalProperties"] is False


def test_unknown_names_come_with_the_nearest_known_one():
    assert (
        unknown_name("task", "translat", ["lm", "seq2seq"])
        == "no such task 'translat'; did you mean 'translate'? known: lm, translate"
    )
    assert suggest("q", ["lm", "tagging"]) == "; known: lm, tag"
    assert suggest("tagg", iter(["lm", "tagging"])) == "; did you mean 'tag'? known: lm, tag"


def test_exit_codes():
    codes = {
        "WeftError": 1,
        "UsageError": 2,
        "ConfigError": 2,
        "DataError": 3,
        "ModelError": 4,
        "ResourceError": 5,
        "DivergedError": 6,
    }
    assert {name: getattr(errors, name).exit_code for name in codes} == codes
    assert all(issubclass(getattr(errors, name), errors.WeftError) for name in codes)
    assert issubclass(errors.ConfigError, errors.UsageError)


# ---- files


def test_a_run_file_is_read_as_nested_dicts(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text('task = "lm"\n[model]\nhidden_size = 3\n[model.encoder]\nnum_layers = 1\n# ü\n', encoding="utf-8")
    assert read_toml(path) == {"task": "lm", "model": {"hidden_size": 3, "encoder": {"num_layers": 1}}}


def test_a_run_file_that_cannot_be_read(tmp_path):
    missing, folder, latin, broken = tmp_path / "no.toml", tmp_path, tmp_path / "latin.toml", tmp_path / "broken.toml"
    latin.write_bytes("a = 'ü'".encode("latin-1"))
    broken.write_text("width = \n")
    for path, message in (
        (missing, "can't be read: No such file or directory"),
        (folder, "can't be read: Is a directory"),
        (latin, "is not UTF-8 (byte 5); a run file is a UTF-8 text"),
        (broken, "is not TOML: Invalid value (at line 1, column 9)"),
    ):
        with pytest.raises(ConfigError) as caught:
            read_toml(path)
        assert str(caught.value) == f"{path}: {message}"


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
def test_a_value_is_what_toml_reads_and_else_a_word(text, value):
    found = override({}, [f"model.x={text}"])["model"]["x"]
    assert found == value and type(found) is type(value)


def test_overrides_reach_any_depth_and_change_a_copy():
    values = {"task": "lm", "model": {"hidden_size": 3, "encoder": {"num_layers": 1, "num_heads": 2}}}
    new = override(
        values, ["model.encoder.num_layers=4", "model.hidden_size=5", "train.lr=1", " task =tag", "model.hidden_size=6"]
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
        ("model.hidden_size", "--set model.hidden_size: must look like model.hidden_size=512"),
        ("=3", "--set =3: must look like model.hidden_size=512"),
        ("model..width=3", "--set model..width=3: must look like model.hidden_size=512"),
        ("task.kind=3", "--set task.kind=3: task is a value, not a table"),
        ("model.hidden_size.x=3", "--set model.hidden_size.x=3: width is a value, not a table"),
    ],
)
def test_overrides_that_are_refused(setting, message):
    with pytest.raises(ConfigError) as caught:
        override({"task": "lm", "model": {"hidden_size": 3}}, [setting])
    assert str(caught.value) == message


def test_differences_are_named_option_by_option():
    old = {"task": "lm", "model": {"hidden_size": 128, "num_heads": 4, "encoder": {"num_layers": 1}}, "seed": 0}
    new = {"task": "lm", "model": {"hidden_size": 256, "encoder": {"num_layers": 2}, "tie_embeddings": False}, "seed": 0}
    assert describe_differences(old, new) == [
        "model.encoder.num_layers: 1 there, 2 here",
        "model.num_heads: 4 there, nothing here",
        "model.tie_embeddings: nothing there, False here",
        "model.hidden_size: 128 there, 256 here",
    ]
    assert describe_differences(old, old) == []
    assert describe_differences({"a": {"b": 1}}, {"a": 2}, "run") == ["run.a: {'b': 1} there, 2 here"]
