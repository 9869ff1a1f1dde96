"""The JSON schema of the run file of a task, for editors: all tables with their options, choices, defaults and descriptions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from weft.config import Config, described_fields, table_class
from weft.models.config import EmbeddedStackConfig
from weft.runs.config import RunConfig
from weft.runs.resolve import RunFile, resolve
from weft.tasks.registry import find_task
from weft.tasks.templates import find_template

DIALECT = "https://json-schema.org/draft/2020-12/schema"
ARCH = "Architecture preset. Every other option of [model] overrides it."
Schema = dict[str, Any]


def run_file_schema(task: str) -> Schema:
    """The JSON schema (draft 2020-12) of the run files of a task. [model] is one schema per architecture: defaults differ."""
    spec, archs = find_task(task), find_template(task).archs
    configs = [_defaults(task, arch) for arch in archs]
    top: Schema = _properties(RunFile, None)
    tables = {
        "data": _table(spec.data.data_config, configs[0].data, required=("train",)),
        "tokenizer": _table(spec.data.tokenizer_config, configs[0].tokenizer),
        "model": {"oneOf": [_model(arch, config.model) for arch, config in zip(archs, configs, strict=True)]},
        "train": _shared_defaults([_table(type(config.train), config.train) for config in configs]),
    }
    for name, table in tables.items():
        top[name] = {"description": top[name]["description"], **table}
    top["task"] = {"description": top["task"]["description"], "const": task}
    return {
        "$schema": DIALECT,
        "title": f"weft run file of task {task}",
        "type": "object",
        "properties": top,
        "required": ["task", "data", "model"],
        "additionalProperties": False,
    }


def _defaults(task: str, arch: str) -> RunConfig:
    return resolve({"task": task, "data": dict(find_template(task).data), "model": {"arch": arch}}, base=Path("/"))


def _model(arch: str, model: Config) -> Schema:
    table = _table(type(model), model, required=("arch",))
    if {"encoder", "decoder"} <= set(type(model).model_fields):  # options of both sides may be options of [model]
        table["properties"] |= _properties(EmbeddedStackConfig, None, with_defaults=False)
    table["properties"] = {"arch": {"description": ARCH, "const": arch}, **table["properties"]}
    return table


def _table(config_class: type[Config], values: Config | None, required: tuple[str, ...] = ()) -> Schema:
    schema: Schema = {"type": "object", "properties": _properties(config_class, values), "additionalProperties": False}
    return {**schema, "required": list(required)} if required else schema


def _properties(config_class: type[Config], values: Config | None, *, with_defaults: bool = True) -> Schema:
    """The options of a table; `values` are the defaults, unless the class has them."""
    generated = config_class.model_json_schema()["properties"]
    properties: Schema = {}
    for name, field in described_fields(config_class).items():
        value = field.get_default(call_default_factory=True) if values is None else getattr(values, name)
        alternatives = [
            _without_metadata(part) for part in generated[name].get("anyOf", [generated[name]]) if part.get("type") != "null"
        ]
        if (inner := table_class(field)) is not None:
            constants = [part for part in alternatives if "const" in part]
            alternatives = [_table(inner, value if isinstance(value, inner) else None), *constants]
        option = dict(alternatives[0]) if len(alternatives) == 1 else {"anyOf": alternatives}
        properties[name] = {"description": field.description, **option}
        # valid and test are set in the template, but have no default
        has_default = with_defaults and not field.is_required() and name not in ("valid", "test")
        if has_default and value is not None and not isinstance(value, Config):
            properties[name]["default"] = value
    return properties


def _without_metadata(schema: Schema) -> Schema:
    """The schema without keys that are set elsewhere, and without pydantic's generated title."""
    return {key: value for key, value in schema.items() if key not in ("title", "default", "description")}


def _shared_defaults(tables: list[Schema]) -> Schema:
    """The schema of a table, with those defaults that all architectures share."""
    first, *rest = tables
    for name, option in first["properties"].items():
        if any(other["properties"][name].get("default") != option.get("default") for other in rest):
            option.pop("default", None)
    return first
