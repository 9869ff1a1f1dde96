"""The tensor files of a checkpoint: whole in one process, divided over the processes of a group.

One process writes `model.safetensors`, `optimizer.safetensors` and so on. If there are several, each writes files of its own,
such as `model-00001-of-00002.safetensors`: the rows that it holds of sharded tensors, and some of the tensors that all hold.
`index.json` lists which rows of which tensor are in which file, so that any number of processes can read them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from weft import files
from weft.errors import ModelError, ResourceError
from weft.parallel.group import Group
from weft.parallel.rows import rows_of_rank
from weft.parallel.shards import from_rows, is_sharded, local_part, shard_like
from weft.tensors import read_listed
from weft.training.micro_batches import join_parts, select_rows
from weft.training.snapshot import TensorFile

INDEX = "index.json"
STATE = "state"  # the file of the carried state: every process has other rows
T = TypeVar("T")


class Shard(NamedTuple):
    """The files that one process writes."""

    files: dict[str, TensorFile]  # by file name
    parts: dict[str, dict[str, Any]]  # by file name and tensor: the shape of the whole tensor, and the first row of this part
    tied: dict[str, dict[str, str]]  # by kind: names of tied tensors, and the name that each is stored under


def file_name(kind: str, group: Group) -> str:
    """The name of a file of this process."""
    return f"{kind}.safetensors" if group.size == 1 else f"{kind}-{group.rank + 1:05d}-of-{group.size:05d}.safetensors"


def divide(content: Mapping[str, TensorFile], group: Group) -> Shard:
    """The files of this process, of the content of a checkpoint by kind."""
    if group.size == 1:
        return Shard({file_name(kind, group): file for kind, file in content.items()}, {}, {})
    tied = {kind: _tied_names(file.tensors) for kind, file in content.items() if kind != STATE}
    owners = _owners({kind: file for kind, file in content.items() if kind != STATE}, tied, group.size)
    shard = Shard({}, {}, tied)
    for kind, file in content.items():
        name = file_name(kind, group)
        tensors, places = dict[str, Tensor](), dict[str, Any]()
        for key, tensor in file.tensors.items():
            part, first_row, shape = local_part(tensor.detach())
            is_ours = kind == STATE or (is_sharded(tensor) and part.numel() > 0) or owners.get((kind, key)) == group.rank
            if is_ours and key not in tied.get(kind, {}):
                tensors[key], places[key] = part, {"shape": list(shape), "first_row": first_row}
        shard.files[name] = TensorFile(tensors, file.metadata, file.volatile)
        shard.parts[name] = places
    return shard


def _tied_names(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Names of tied tensors, and the first name of each. They are the same object: of sharded tensors, the address may be that
    of no rows at all."""
    first_names: dict[int, str] = {}
    names = {name: first_names.setdefault(id(tensor), name) for name, tensor in tensors.items()}
    return {name: stored for name, stored in names.items() if name != stored}


def _owners(content: Mapping[str, TensorFile], tied: Mapping[str, Mapping[str, str]], size: int) -> dict[tuple[str, str], int]:
    """Which process writes each tensor that all processes hold: large tensors first, to the process with the fewest bytes."""
    shared = [
        (-tensor.nbytes, kind, name)
        for kind, file in content.items()
        for name, tensor in file.tensors.items()
        if not is_sharded(tensor) and name not in tied[kind]
    ]
    loads, owners = [0] * size, dict[tuple[str, str], int]()
    for negative_bytes, kind, name in sorted(shared):
        rank = loads.index(min(loads))
        owners[kind, name] = rank
        loads[rank] -= negative_bytes
    return owners


def together(group: Group, action: Callable[[], T]) -> list[T]:
    """The results of an action in every process. If it fails in one of them, all raise an error: the others name that
    process."""
    if group.size == 1:
        return [action()]
    error, result = None, None
    try:
        result = action()
    except Exception as failure:
        error = failure
    outcomes = group.gather([result, None if error is None else str(error)])
    if error is not None:
        raise error
    for rank, (_, message) in enumerate(outcomes):
        if message is not None:
            raise ResourceError(group.name(rank), message)
    return [outcome for outcome, _ in outcomes]


def make_index(shards: Sequence[Mapping[str, Any]], tied: Mapping[str, Any], state_rows: Sequence[Sequence[int]]) -> Any:
    """The content of index.json. `shards` are the `parts` of every process, `state_rows` its rows of the carried state."""
    tensors: dict[str, dict[str, Any]] = {}
    states: list[dict[str, Any]] = []
    for rank, parts in enumerate(shards):
        for name, places in parts.items():
            kind = name.partition("-")[0]
            if kind == STATE:
                states.append({"file": name, "rows": list(state_rows[rank])})
                continue
            for key, place in sorted(places.items()):
                entry = tensors.setdefault(kind, {}).setdefault(key, {"shape": place["shape"], "parts": []})
                entry["parts"].append([name, place["first_row"]])
    return {"version": 1, "processes": len(shards), "tensors": tensors, "tied": tied, STATE: states}


def state_rows(num_rows: Sequence[int], micro_batches: int) -> list[list[int]]:
    """The rows of the carried state in each process, which have this many."""
    size, total = len(num_rows), sum(num_rows)
    if total == 0:
        return [[] for _ in num_rows]
    return [rows_of_rank(total, micro_batches, rank=rank, size=size).tolist() for rank in range(size)]


# ---- reading


class StoredTensors:
    """The tensors of a verified checkpoint, memory-mapped: only the rows that are asked for are read."""

    def __init__(self, checkpoint: Path) -> None:
        self.checkpoint, self.path = checkpoint, checkpoint / INDEX
        self.index: Any = files.read_json(self.path) if self.path.exists() else None

    def where(self, kind: str) -> Path:
        """The file to name in messages."""
        return self.checkpoint / f"{kind}.safetensors" if self.index is None else self.path

    def read(self, kind: str, like: Callable[[str], Tensor | None]) -> dict[str, Tensor]:
        """Tensors by name: of those whose `like` is sharded, the rows of this process."""
        if self.index is None:
            tensors, _ = read_listed(self.checkpoint / f"{kind}.safetensors")
            return {name: _sharded(tensor, like(name)) for name, tensor in tensors.items()}
        try:
            return self._read_parts(kind, like)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError):
            raise self._corrupted() from None

    def states(self) -> list[tuple[Path, list[int] | None]]:
        """The files of the carried state, and the rows of the batch that each has; None: all."""
        if self.index is None:
            return [(self.checkpoint / f"{STATE}.safetensors", None)]
        try:
            return [(self._file(entry["file"]), [int(row) for row in entry["rows"]]) for entry in self.index[STATE]]
        except (KeyError, TypeError, ValueError, AttributeError):
            raise self._corrupted() from None

    def _corrupted(self) -> ModelError:
        return ModelError(self.path, "corrupted: it does not match the files of the checkpoint")

    def _file(self, name: str) -> Path:
        if name not in {path.name for path in self.checkpoint.iterdir()}:
            raise KeyError(name)
        return self.checkpoint / name

    def _read_parts(self, kind: str, like: Callable[[str], Tensor | None]) -> dict[str, Tensor]:
        if self.index["version"] != 1:
            raise ModelError(self.path, f"format version {self.index['version']!r} is not supported (expected 1)")
        tensors, mapped = dict[str, Tensor](), dict[str, dict[str, Tensor]]()
        for name, entry in self.index["tensors"].get(kind, {}).items():
            parts = []
            for file, first_row in entry["parts"]:
                if file not in mapped:
                    mapped[file] = read_listed(self._file(file))[0]
                parts.append((int(first_row), mapped[file][name]))
            tensors[name] = _assemble(parts, tuple(entry["shape"]), like(name))
        for name, stored_name in self.index["tied"].get(kind, {}).items():
            tensors[name] = tensors[stored_name]
        return tensors


def _sharded(tensor: Tensor, like: Tensor | None) -> Tensor:
    return tensor if like is None or like.shape != tensor.shape else shard_like(tensor, like)


def _assemble(parts: Sequence[tuple[int, Tensor]], shape: tuple[int, ...], like: Tensor | None) -> Tensor:
    """A tensor of its parts, with their first rows; only the rows that `like` has here, if it is sharded."""
    parts = sorted(parts, key=lambda part: part[0])
    if not shape:
        [(_, scalar)] = parts
        return scalar
    ends = [first_row + len(part) for first_row, part in parts]
    if [first_row for first_row, _ in parts] != [0, *ends[:-1]] or ends[-1] != shape[0]:
        raise ValueError("parts overlap, or are missing")
    if any(part.shape[1:] != shape[1:] or part.dtype != parts[0][1].dtype for _, part in parts):
        raise ValueError("parts of several tensors")
    if like is None or tuple(like.shape) != shape or not is_sharded(like):
        return _rows(parts, 0, shape[0])
    part, first_row, _ = local_part(like)
    return from_rows(_rows(parts, first_row, len(part)), like)


def _rows(parts: Sequence[tuple[int, Tensor]], start: int, count: int) -> Tensor:
    """Rows [start, start + count) of a tensor of several parts."""
    pieces = [part[max(0, start - first) : max(0, start + count - first)] for first, part in parts]
    filled = [piece for piece in pieces if len(piece)] or pieces[:1]
    return filled[0] if len(filled) == 1 else torch.cat(filled)


def join_states(states: Sequence[tuple[Any, list[int] | None]], path: Path) -> Any:
    """The carried state of all rows, of the states of several processes with their rows."""
    if len(states) == 1 and states[0][1] is None:
        return states[0][0]
    filled = [(state, rows) for state, rows in states if state is not None and rows]
    order = torch.tensor([row for _, rows in filled for row in rows or ()], dtype=torch.long)
    if not filled:
        return None
    if order.sort().values.tolist() != list(range(len(order))):
        raise ModelError(path, "corrupted: it does not match the files of the checkpoint")
    return select_rows(join_parts([state for state, _ in filled]), order.argsort())
