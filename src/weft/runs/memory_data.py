"""Data in memory that a run is trained on, or evaluated with: written down, so that all else goes on as with files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from weft import files
from weft.config import parse_config
from weft.data.memory import MemoryFormat, is_in_memory, is_table, records_of, write_memory
from weft.errors import UsageError, suggest
from weft.runs.config import RunConfig
from weft.runs.run_dir import INPUTS, RunDir
from weft.tasks.registry import TASKS, find_task
from weft.tasks.spec import AnyTask

SPLITS = ("train", "valid", "test")


def _format(task: AnyTask, data: Mapping[str, Any]) -> MemoryFormat:
    """How records of [data] are written down."""
    if task.data.in_memory is None:
        raise UsageError("data", f"task {task.name!r} reads files", "give their paths")
    own = {name: value for name, value in data.items() if name not in SPLITS}
    return task.data.in_memory(parse_config(task.data.table, {**own, "train": "memory.jsonl"}, at="data"))


def _named(value: object) -> Any:
    """Files, or a part of the training data, as a run file has them; paths are seen from here."""
    if isinstance(value, list | tuple):
        return [_named(one) for one in value]
    return str(Path(value).absolute()) if isinstance(value, str | Path) else value


def place_inputs(
    values: Mapping[str, Any], given: Mapping[str, object], directory: Path
) -> tuple[dict[str, Any], dict[str, object]]:
    """A run file whose [data] names what is `given`, and, of that, what is to be written into `folder`, by split."""
    for split in given:
        if split not in SPLITS:
            raise UsageError("data", f"no such split {split!r}", suggest(split, SPLITS))
    config, name = values.get("data", {}), values.get("task")
    if not isinstance(config, Mapping) or not isinstance(name, str) or name not in TASKS:
        return {**values, "data": {**given}}, {}  # which is refused when it is resolved
    task = find_task(name)
    placed, held = dict(config), dict[str, object]()
    for split, value in given.items():
        if value is None or isinstance(value, bool | int | float):
            placed[split] = value
            continue
        format = _format(task, config)
        if is_in_memory(value, format, f"data[{split!r}]"):
            held[split] = value
            placed[split] = str((directory / INPUTS / f"{split}{format.suffix}").absolute())
        else:
            placed[split] = _named(value)
    return {**values, "data": {split: value for split, value in placed.items() if value is not None}}, held


def write_inputs(config: RunConfig, directory: RunDir, held: Mapping[str, object]) -> None:
    """Write data down; what a run has been trained on must be the same again. Call under the lock."""
    if not held:
        return
    format = _format(config.spec, config.to_dict()["data"])
    files.own_directory(directory.inputs)
    for split, data in held.items():
        path, where = directory.inputs / f"{split}{format.suffix}", f"data[{split!r}]"
        begun = path.is_file() and (directory.has_started() or directory.weights.exists())
        new = files.temporary(path) if begun else path
        try:
            write_memory(new, data, format, encoding=config.data.encoding, where=where)
            if begun and files.sha256(new) != files.sha256(path):
                raise UsageError(
                    where,
                    f"is not what {directory.path} is trained on",
                    "give the same data to resume, choose another output directory, or overwrite the run",
                )
        finally:
            if begun:
                files.remove(new)


def inputs_of(config: RunConfig, given: Any) -> list[Any]:
    """What a caller gave to predict from: inputs, or records and tables, whose columns are those that [data] names."""
    records = list(records_of(given, "inputs") if is_table(given) else given)
    if not any(isinstance(record, Mapping) for record in records):
        return records
    format = _format(config.spec, config.to_dict()["data"])
    return [format.input_of(record, f"inputs: record {number}") for number, record in enumerate(records, 1)]


@contextmanager
def as_files(config: RunConfig, data: Any) -> Iterator[Any]:
    """Data of an evaluation as files: those that it names, or one that is there while the block runs."""
    files_only = isinstance(data, list | tuple) and (not data or config.spec.data.in_memory is None)
    if data is None or isinstance(data, str | Path) or files_only:
        yield data
        return
    format = _format(config.spec, config.to_dict()["data"])
    if not is_in_memory(data, format, "data"):
        yield data
        return
    with TemporaryDirectory(prefix="weft-") as place:
        path = Path(place) / f"data{format.suffix}"
        write_memory(path, data, format, encoding=config.data.encoding, where="data")
        yield path
