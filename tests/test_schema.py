"""The JSON schema of run files: valid, accepts every example, and rejects what weft rejects."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from weft.cli.main import main
from weft.cli.run_file_schema import DIALECT, run_file_schema
from weft.config import Config, described_fields
from weft.tasks.registry import TASKS, find_task

EXAMPLES = sorted(Path(__file__).parents[1].joinpath("examples").glob("*.toml"))
TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict, "array": list, "string": str, "boolean": bool, "integer": int, "number": (int, float),
}  # fmt: skip
LIMITS = {
    "minimum": lambda value, limit: value >= limit, "exclusiveMinimum": lambda value, limit: value > limit,
    "maximum": lambda value, limit: value <= limit, "exclusiveMaximum": lambda value, limit: value < limit,
    "minItems": lambda value, limit: len(value) >= limit, "maxItems": lambda value, limit: len(value) <= limit,
    "multipleOf": lambda value, limit: value % limit == 0,
}  # fmt: skip
ANNOTATIONS = {"$schema", "title", "description", "default"}
CHECKED = {"type", "enum", "const", "anyOf", "oneOf", "properties", "required", "additionalProperties", "items", *LIMITS}


def problems(value: Any, schema: dict[str, Any], path: str = "run") -> list[str]:
    """Violations of a schema, for the subset of JSON Schema that run files use."""
    assert set(schema) <= CHECKED | ANNOTATIONS, set(schema) - CHECKED - ANNOTATIONS
    actual = [path] if "const" in schema and value != schema["const"] else []
    if "enum" in schema and value not in schema["enum"]:
        actual.append(path)
    if "type" in schema:
        is_bool = isinstance(value, bool) and schema["type"] != "boolean"
        if is_bool or not isinstance(value, TYPES[schema["type"]]):
            return [*actual, path]
    actual += [f"{path} {name}" for name, holds in LIMITS.items() if name in schema and not holds(value, schema[name])]
    if "anyOf" in schema and all(problems(value, part, path) for part in schema["anyOf"]):
        actual.append(path)
    if "oneOf" in schema and sum(not problems(value, part, path) for part in schema["oneOf"]) != 1:
        actual.append(path)
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        actual += [f"{path}.{name} is missing" for name in schema.get("required", ()) if name not in value]
        for name, inner in value.items():
            more = schema.get("additionalProperties", True)
            part = properties.get(name, more if isinstance(more, dict) else None)
            actual += problems(inner, part, f"{path}.{name}") if part is not None else [] if more else [f"{path}.{name}"]
    if isinstance(value, list) and "items" in schema:
        actual += [problem for part in value for problem in problems(part, schema["items"], path)]
    return actual


@pytest.fixture(scope="module")
def schemas() -> dict[str, dict[str, Any]]:
    return {task: run_file_schema(task) for task in TASKS}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_validates(path, schemas):
    values = tomllib.loads(path.read_text(encoding="utf-8"))
    assert problems(values, schemas[values["task"]]) == []


@pytest.mark.parametrize("task", TASKS)
def test_printed_schema_has_all_tables_and_descriptions(task, schemas, capsys):
    assert main(["init", task, "--schema"]) == 0
    assert json.loads(capsys.readouterr().out) == schemas[task]
    schema = schemas[task]
    assert schema["$schema"] == DIALECT and list(schema["properties"]) == [
        "task",
        "seed",
        "recommend",
        "data",
        "tokenizer",
        "model",
        "train",
    ]
    archs = [part["properties"]["arch"]["const"] for part in schema["properties"]["model"]["oneOf"]]
    assert set(archs) == set(find_task(task).presets)
    assert undescribed(schema["properties"]) == []


def undescribed(properties: dict[str, Any], path: str = "") -> list[str]:
    actual = [f"{path}{name}" for name, part in properties.items() if not part.get("description")]
    for name, part in properties.items():
        for inner in (part, *part.get("oneOf", ()), *part.get("anyOf", ())):
            actual += undescribed(inner.get("properties", {}), f"{path}{name}.")
    return actual


@pytest.mark.parametrize(
    ("table", "values"),
    [
        ("data", {"train": "a.txt", "read_as": "line"}),
        ("data", {"valid": 0.1}),
        ("model", {"arch": "gtp"}),
        ("model", {"arch": "gpt", "hidden_size": "wide"}),
        ("model", {"arch": "gpt", "hidden_size": 0}),
        ("model", {"arch": "gpt", "hiden_size": 8}),
        ("model", {"arch": "ngram", "hidden_size": 8}),
        ("train", {"optimizer": "adam"}),
        ("tokenizer", {"type": "space"}),
    ],
)
def test_invalid_run_files_are_rejected(table, values, schemas):
    good = {"task": "lm", "data": {"train": "a.txt"}, "model": {"arch": "gpt"}}
    assert problems(good, schemas["lm"]) == []
    assert problems({**good, table: values}, schemas["lm"]) != []


def test_defaults_are_those_of_the_architecture(schemas):
    models = {part["properties"]["arch"]["const"]: part for part in schemas["lm"]["properties"]["model"]["oneOf"]}
    layers = {arch: part["properties"]["num_layers"]["default"] for arch, part in models.items() if arch != "ngram"}
    assert (layers["gpt"], layers["lstm"], layers["conv"]) == (4, 2, 1)
    train = schemas["lm"]["properties"]["train"]["properties"]
    assert "default" not in train["lr"] and train["batch_tokens"]["default"] == 4096  # lr differs


def every_table(kind: type[Config]) -> list[type[Config]]:
    return [actual for subclass in kind.__subclasses__() for actual in (subclass, *every_table(subclass))]


def test_every_option_of_every_table_has_one_sentence():
    for task in TASKS:
        find_task(task)
    tables = [
        table
        for table in every_table(Config)
        if table.__module__.startswith("weft.")
        and not table.__module__.startswith(("weft.serve.", "weft.comparison."))
        and "Options" not in table.__name__
    ]  # bodies of requests are described by the pages on serving; plans of comparisons are written by weft
    bare = [
        f"{table.__name__}.{name}"
        for table in tables
        for name, field in described_fields(table).items()
        if not (field.description or "").endswith(".")
    ]
    assert bare == []
