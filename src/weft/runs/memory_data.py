"""Data in memory for training, evaluation and prediction. It is written to files, which are then used like any others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from weft import files
from weft.config import parse_config
from weft.data.memory import MemoryFormat, archive_of, is_in_memory, is_table, iter_records, list_inputs, write_memory
from weft.errors import UsageError, suggest
from weft.runs.config import RunConfig
from weft.runs.run_dir import INPUTS, RunDir
from weft.tasks.registry import TASKS, find_task
from weft.tasks.spec import AnyTask

SPLITS = ("train", "valid", "test")


def _format(task: AnyTask, data: Mapping[str, Any]) -> MemoryFormat:
    """The file format for records, by the options of [data]."""
    if task.data.in_memory is None:
        raise UsageError("data", f"task {task.name!r} reads files only", "pass their paths")
    options = {name: value for name, value in data.items() if name not in SPLITS}
    return task.data.in_memory(parse_config(task.data.data_config, {**options, "train": "memory.jsonl"}, prefix="data"))


def _absolute(value: object) -> Any:
    """Files, or a fraction of the training data, as in a run file; paths are relative to the current directory."""
    if isinstance(value, list | tuple):
        return [_absolute(item) for item in value]
    return str(Path(value).absolute()) if isinstance(value, str | Path) else value


def place_inputs(
    values: Mapping[str, Any], data: Mapping[str, object], directory: Path
) -> tuple[dict[str, Any], dict[str, object]]:
    """The run file with `data` in its [data] table, and the part of `data` that is in memory, by split, to be written to the
    run directory."""
    if not isinstance(data, Mapping):  # such as a DataFrame
        raise UsageError("data", f"expected a dict of splits, got {type(data).__name__}", 'pass {"train": ..., "valid": 0.1}')
    for split in data:
        if split not in SPLITS:
            raise UsageError("data", f"unknown split {split!r}", suggest(str(split), SPLITS))
    config, name = values.get("data", {}), values.get("task")
    if not isinstance(config, Mapping) or not isinstance(name, str) or name not in TASKS:
        return {**values, "data": {**data}}, {}  # `resolve` refuses it
    task = find_task(name)
    table, memory_data = dict(config), dict[str, object]()
    for split, value in data.items():
        if value is None or isinstance(value, bool | int | float):
            table[split] = value
            continue
        format = _format(task, config)
        if is_in_memory(value, format, f"data[{split!r}]"):
            memory_data[split] = value
            table[split] = str((directory / INPUTS / f"{split}{format.suffix}").absolute())
        else:
            table[split] = _absolute(value)
    return {**values, "data": {split: value for split, value in table.items() if value is not None}}, memory_data


@contextmanager
def staged_inputs(values: Mapping[str, Any], memory_data: Mapping[str, object]) -> Iterator[dict[str, Path]]:
    """Temporary files with the data in memory, by split, while the block runs: data is read before its run has a directory."""
    if not memory_data:
        yield {}
        return
    table = values["data"]
    format = _format(find_task(values["task"]), table)
    with TemporaryDirectory(prefix="weft-") as directory:
        paths = {split: Path(directory) / f"{split}{format.suffix}" for split in memory_data}
        for split, path in paths.items():
            write_memory(path, memory_data[split], format, encoding=table.get("encoding", "utf-8"), where=f"data[{split!r}]")
        yield paths


def _copy(source: Path, target: Path) -> None:
    with files.atomic_write(target) as write, source.open("rb") as file:
        for chunk in iter(partial(file.read, 1 << 20), b""):
            write(chunk)


def _checksum(path: Path) -> str | None:
    return files.sha256(path) if path.is_file() else None


def write_inputs(directory: RunDir, inputs: Mapping[str, Path]) -> None:
    """Copy the files of data in memory to the run directory. A run that has started must get the same data again. Call with the
    lock."""
    if not inputs:
        return
    files.make_subdirectory(directory.inputs)
    for split, staged in inputs.items():
        path = directory.inputs / staged.name
        has_started = path.is_file() and (directory.has_started() or directory.weights.exists())
        parts = [(staged, path), (archive_of(staged), archive_of(path))]
        parts = [(source, target) for source, target in parts if source.is_file() or (has_started and target.is_file())]
        if not has_started:
            for source, target in parts:
                _copy(source, target)
        elif any(_checksum(source) != _checksum(target) for source, target in parts):
            raise UsageError(
                f"data[{split!r}]",
                f"differs from the data that {directory.path} is trained on",
                "pass the same data to resume, choose another `output_dir`, or use `overwrite`",
            )


def inputs_of(config: RunConfig, inputs: Any) -> list[Any]:
    """The inputs for prediction. From records and tables, the input columns that [data] names are taken."""
    records = list(iter_records(inputs, "inputs")) if is_table(inputs) else list_inputs(inputs)
    if not any(isinstance(record, Mapping) for record in records):
        return records
    format = _format(config.spec, config.to_dict()["data"])
    return [format.get_input(record, f"inputs: record {number}") for number, record in enumerate(records, 1)]


@contextmanager
def as_files(config: RunConfig, data: Any) -> Iterator[Any]:
    """Evaluation data as files: the files themselves, or for data in memory a temporary file that exists while the block
    runs."""
    is_file_list = isinstance(data, list | tuple) and (not data or config.spec.data.in_memory is None)
    if data is None or isinstance(data, str | Path) or is_file_list:
        yield data
        return
    format = _format(config.spec, config.to_dict()["data"])
    if not is_in_memory(data, format, "data"):
        yield data
        return
    with TemporaryDirectory(prefix="weft-") as directory:
        path = Path(directory) / f"data{format.suffix}"
        write_memory(path, data, format, encoding=config.data.encoding, where="data")
        yield path
