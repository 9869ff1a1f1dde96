"""Tensor files: safetensors that carry a sum of their own bytes. Damage is refused by name; no code in them is run."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from weft.errors import ModelError, ResourceError
from weft.files import atomic_write, refuse_device

if TYPE_CHECKING:
    from torch import Tensor

# what a stranger's file may cost before it is refused: a million tensors of no size fit into a small header
MAX_HEADER_BYTES = 16 * 2**20
MAX_TENSORS = 65_536
# fmt: off
TYPES = {  # by the name that torch has for each
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "bool": "BOOL",
    "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8",
    "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8",
}
ARRAYS = {  # what numpy has no type for is mapped as bits
    **{short: np.dtype(name) for name, short in TYPES.items() if "float8" not in name and name != "bfloat16"},
    "BF16": np.dtype("uint16"), "F8_E4M3": np.dtype("uint8"), "F8_E5M2": np.dtype("uint8"),
}
# fmt: on
_SHARED = "weft.shared"
_SUM = "weft.sum"  # SHA-256 of the header without it, and of all that follows
T = TypeVar("T")
_OFFSETS = re.compile(rb'"data_offsets"\s*:\s*\[')


def _as_tensors(given: Mapping[str, Tensor | NDArray[Any]]) -> dict[str, Tensor]:
    import torch

    return {name: torch.from_numpy(one) if isinstance(one, np.ndarray) else one for name, one in given.items()}


def write_tensors(path: Path, given: Mapping[str, Tensor | NDArray[Any]], metadata: Mapping[str, str] | None = None) -> None:
    """A safetensors file, the same bytes for the same tensors or arrays. Tied tensors are written once, by their first name."""
    tensors = _as_tensors(given)
    first: dict[tuple[Any, ...], str] = {}
    shared: dict[str, str] = {}
    for name, tensor in tensors.items():
        if tensor.numel():  # tensors without elements all lie at address 0
            place = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
            if first.setdefault(place, name) != name:
                shared[name] = first[place]
    # large elements first, so that every tensor starts at a multiple of its element's size
    names = sorted((name for name in tensors if name not in shared), key=lambda name: (-tensors[name].itemsize, name))
    notes = dict(metadata or {}) | ({_SHARED: json.dumps(shared)} if shared else {})
    header: dict[str, Any] = {"__metadata__": dict(sorted(notes.items()))}
    offset = 0
    for name in names:
        tensor, end = tensors[name], offset + tensors[name].nbytes
        header[name] = {
            "dtype": TYPES[str(tensor.dtype).removeprefix("torch.")],
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    summed = hashlib.sha256(_packed(header))
    for part in _bytes(tensors, names):
        summed.update(part)
    header["__metadata__"][_SUM] = summed.hexdigest()
    raw = _packed(header)
    with atomic_write(path) as write:
        write(len(raw).to_bytes(8, "little") + raw)
        for part in _bytes(tensors, names):
            write(part)


def _packed(header: Mapping[str, Any]) -> bytes:
    raw = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    return raw + b" " * (-len(raw) % 8)


def _bytes(tensors: Mapping[str, Tensor], names: list[str]) -> Iterator[memoryview]:
    """One tensor at a time: a model on a GPU is never whole in the host's memory."""
    import torch

    for name in names:
        flat = tensors[name].detach().to("cpu").contiguous().reshape(-1)
        if flat.numel():
            yield flat.view(torch.uint8).numpy().data


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors by name, mapped from the file and private to the reader, and the metadata; no code of it is run."""
    tensors, notes = read_foreign(path)
    return _share(path, tensors, notes), notes


def read_arrays(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """The same as arrays of numpy: torch is not imported."""
    count = _check_header(path)
    try:
        with safe_open(path, framework="np") as file:  # looks whether types, shapes and places fit each other and the file
            names, notes = list(file.keys()), dict(file.metadata() or {})
    except (SafetensorError, OSError, RuntimeError, ValueError) as error:
        raise _unreadable(path, error) from None
    _refuse_doubles(path, names, count)
    return _share(path, _map(path, names), notes), notes


def _map(path: Path, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """The arrays of these names where they lie in the file; what is changed in them does not reach it."""
    header, start = _read_header(path)
    data, arrays = np.memmap(path, np.uint8, mode="c").view(np.ndarray)[start:], dict[str, NDArray[Any]]()
    try:
        for name in names:
            begin, end = header[name]["data_offsets"]
            arrays[name] = data[begin:end].view(ARRAYS[header[name]["dtype"]]).reshape(header[name]["shape"])
    except (KeyError, TypeError, ValueError) as error:  # of a type that is not known here, or not the file that it was
        raise _unreadable(path, error) from None
    return arrays


def _share(path: Path, tensors: dict[str, T], notes: dict[str, str]) -> dict[str, T]:
    """With the tensors that are written once under their other names, of a file that is as it was written. What only the file
    needs is taken out of its notes."""
    for name, owner in _shared(path, notes.pop(_SHARED, "{}")).items():
        if name in tensors or owner not in tensors:
            raise ModelError(path, f"is damaged: {name!r} is said to share {owner!r}")
        tensors[name] = tensors[owner]
    _check_sum(path)
    del notes[_SUM]
    return tensors


def read_notes(path: Path) -> dict[str, str]:
    """The metadata alone, which costs nothing; whether the rest is whole is not looked at."""
    _check_header(path)
    try:
        with safe_open(path, framework="np") as file:
            return dict(file.metadata() or {})
    except (SafetensorError, OSError, RuntimeError, ValueError) as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: Exception) -> ModelError:
    reason = " ".join(str(error).split())
    return ModelError(path, f"is damaged or no safetensors file: {reason}")


def _refuse_doubles(path: Path, names: list[str], count: int) -> None:
    if len(names) != count:
        raise ModelError(path, "is damaged: it lists a tensor twice")


def _bounds(tensor: Tensor | NDArray[Any]) -> tuple[float, float] | None:
    """The least and the largest of floating-point numbers, a NaN being both; nothing is allocated. None of others, or none."""
    if isinstance(tensor, np.ndarray):
        return (float(tensor.min()), float(tensor.max())) if tensor.dtype.kind == "f" and tensor.size else None
    if not (tensor.is_floating_point() and tensor.numel()):
        return None
    import torch

    low, high = (float(bound) for bound in torch.aminmax(tensor.detach()))
    return low, high


def not_finite(tensors: Mapping[str, Tensor] | Mapping[str, NDArray[Any]], *, logs: bool = False) -> str | None:
    """The name of the first tensor with a NaN or an infinity in it. A threshold, which is one number, may be infinite, and so
    may the logarithm of 0."""
    for name, tensor in tensors.items():
        if (bounds := _bounds(tensor)) is None:
            continue
        low, high = bounds
        if math.isnan(low) or (tensor.ndim and (high == math.inf or (low == -math.inf and not logs))):
            return name
    return None


def read_foreign(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The same of a file that another program wrote, which knows no sum of its bytes."""
    count = _check_header(path)
    try:
        with safe_open(path, framework="pt") as file:
            names = list(file.keys())
            notes = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in names}
    except (SafetensorError, OSError, RuntimeError, ValueError, KeyError, AttributeError) as error:
        raise _unreadable(path, error) from None
    _refuse_doubles(path, names, count)
    return tensors, notes


def _check_header(path: Path) -> int:
    """How many tensors are listed; refuses by the first bytes and what they announce, before anything is parsed."""
    refuse_device(path)
    try:
        with path.open("rb") as file:
            size, start = os.fstat(file.fileno()).st_size, file.read(9)
            length = int.from_bytes(start[:8], "little")
            fits = len(start) == 9 and start[8:] == b"{" and 8 + length <= size
            count = len(_OFFSETS.findall(file.read(length - 1))) if fits and length <= MAX_HEADER_BYTES else 0
    except FileNotFoundError:
        raise ModelError(path, "is missing") from None
    except OSError as error:
        raise ResourceError(path, f"can't be read: {error.strerror}") from None
    if not fits:
        if start.startswith(b"PK\x03\x04") or (start[:1] == b"\x80" and start[1:2] in b"\x02\x03\x04\x05"):
            raise ModelError(path, "is a pickle, which could run code", "weft reads safetensors only")
        raise ModelError(path, f"is damaged or no safetensors file: its first bytes do not fit its {size} bytes")
    if length > MAX_HEADER_BYTES:
        raise ModelError(path, f"its header of {length} bytes is over the limit of {MAX_HEADER_BYTES}")
    if count > MAX_TENSORS:
        raise ModelError(path, f"its {count} tensors are over the limit of {MAX_TENSORS}")
    return count


def _read_header(path: Path) -> tuple[Any, int]:
    """The header, None where it is no JSON, and where it ends."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        with suppress(ValueError, RecursionError):
            return json.loads(file.read(length)), 8 + length
    return None, 8 + length


def _check_sum(path: Path) -> None:
    """Refuse a file of which any byte is not as it was written: the format itself would load it with wrong numbers."""
    header, start = _read_header(path)
    with path.open("rb") as file:
        file.seek(start)
        notes = header.get("__metadata__") if isinstance(header, dict) else None
        noted = notes.pop(_SUM, None) if isinstance(notes, dict) else None
        if noted is None:
            raise ModelError(path, "is damaged or not written by weft: it has no sum of its bytes")
        summed = hashlib.sha256(_packed(header))
        while part := file.read(1 << 20):
            summed.update(part)
    if summed.hexdigest() != noted:
        raise ModelError(path, "its SHA-256 differs from the one in its header", "the file is damaged")


def _shared(path: Path, text: str) -> dict[str, str]:
    found: Any = None
    with suppress(ValueError, RecursionError):
        found = json.loads(text)
    if not isinstance(found, dict) or not all(isinstance(owner, str) for owner in found.values()):
        raise ModelError(path, "is damaged: its list of shared tensors can't be read")
    return found
