"""Tensor files: safetensors with a checksum. Corrupted files are refused; files are never executed as code."""

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

# limits on foreign files: a million empty tensors fit into a small header
MAX_HEADER_BYTES = 16 * 2**20
MAX_TENSORS = 65_536
# fmt: off
TYPES = {  # by their names in torch
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "bool": "BOOL",
    "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8",
    "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8",
}
ARRAYS = {  # types that NumPy does not have are mapped as bits
    **{short: np.dtype(name) for name, short in TYPES.items() if "float8" not in name and name != "bfloat16"},
    "BF16": np.dtype("uint16"), "F8_E4M3": np.dtype("uint8"), "F8_E5M2": np.dtype("uint8"),
}
# fmt: on
_SHARED = "weft.shared"
_CHECKSUM = "weft.sum"  # SHA-256 of the header without this entry, and of the data
T = TypeVar("T")
_OFFSETS = re.compile(rb'"data_offsets"\s*:\s*\[')


def _as_tensors(arrays: Mapping[str, Tensor | NDArray[Any]]) -> dict[str, Tensor]:
    import torch

    return {name: torch.from_numpy(array) if isinstance(array, np.ndarray) else array for name, array in arrays.items()}


def write_tensors(path: Path, arrays: Mapping[str, Tensor | NDArray[Any]], metadata: Mapping[str, str] | None = None) -> None:
    """Write a safetensors file, deterministically. Tied tensors are written once, under the first name."""
    tensors = _as_tensors(arrays)
    first: dict[tuple[Any, ...], str] = {}
    shared: dict[str, str] = {}
    for name, tensor in tensors.items():
        if tensor.numel():  # all tensors without elements are at address 0
            address = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
            if first.setdefault(address, name) != name:
                shared[name] = first[address]
    # large elements first, so that every tensor starts at a multiple of its element's size
    names = sorted((name for name in tensors if name not in shared), key=lambda name: (-tensors[name].itemsize, name))
    entries = dict(metadata or {}) | ({_SHARED: json.dumps(shared)} if shared else {})
    header: dict[str, Any] = {"__metadata__": dict(sorted(entries.items()))}
    offset = 0
    for name in names:
        tensor, end = tensors[name], offset + tensors[name].nbytes
        header[name] = {
            "dtype": TYPES[str(tensor.dtype).removeprefix("torch.")],
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    digest = hashlib.sha256(_packed(header))
    for part in _bytes(tensors, names):
        digest.update(part)
    header["__metadata__"][_CHECKSUM] = digest.hexdigest()
    raw = _packed(header)
    with atomic_write(path) as write:
        write(len(raw).to_bytes(8, "little") + raw)
        for part in _bytes(tensors, names):
            write(part)


def _packed(header: Mapping[str, Any]) -> bytes:
    raw = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    return raw + b" " * (-len(raw) % 8)


def _bytes(tensors: Mapping[str, Tensor], names: list[str]) -> Iterator[memoryview]:
    """The bytes of one tensor at a time, so that a GPU model is never completely in host memory."""
    import torch

    for name in names:
        flat = tensors[name].detach().to("cpu").contiguous().reshape(-1)
        if flat.numel():
            yield flat.view(torch.uint8).numpy().data


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors by name, memory-mapped copy-on-write, and the metadata."""
    tensors, metadata = read_foreign(path)
    return _share(path, tensors, metadata), metadata


def read_arrays(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """The same as NumPy arrays; torch is not imported."""
    count = _check_header(path)
    try:
        with safe_open(path, framework="np") as file:  # checks that types, shapes and offsets match each other and the file
            names, metadata = list(file.keys()), dict(file.metadata() or {})
    except (SafetensorError, OSError, RuntimeError, ValueError) as error:
        raise _unreadable(path, error) from None
    _refuse_duplicates(path, names, count)
    return _share(path, _map(path, names), metadata), metadata


def _map(path: Path, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """The arrays of these names, memory-mapped copy-on-write."""
    header, start = _read_header(path)
    data, arrays = np.memmap(path, np.uint8, mode="c").view(np.ndarray)[start:], dict[str, NDArray[Any]]()
    try:
        for name in names:
            begin, end = header[name]["data_offsets"]
            arrays[name] = data[begin:end].view(ARRAYS[header[name]["dtype"]]).reshape(header[name]["shape"])
    except (KeyError, TypeError, ValueError) as error:  # an unknown type, or the file was replaced meanwhile
        raise _unreadable(path, error) from None
    return arrays


def _share(path: Path, tensors: dict[str, T], metadata: dict[str, str]) -> dict[str, T]:
    """The tensors with those that share memory under all their names; checks the checksum. Entries of the file format are
    removed from the metadata."""
    for name, owner in _shared(path, metadata.pop(_SHARED, "{}")).items():
        if name in tensors or owner not in tensors:
            raise ModelError(path, f"corrupted: {name!r} cannot share the memory of {owner!r}")
        tensors[name] = tensors[owner]
    _check_sum(path)
    del metadata[_CHECKSUM]
    return tensors


def read_notes(path: Path) -> dict[str, str]:
    """The metadata only; the tensors are not checked."""
    _check_header(path)
    try:
        with safe_open(path, framework="np") as file:
            return dict(file.metadata() or {})
    except (SafetensorError, OSError, RuntimeError, ValueError) as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: Exception) -> ModelError:
    reason = " ".join(str(error).split())
    return ModelError(path, f"corrupted or not a safetensors file: {reason}")


def _refuse_duplicates(path: Path, names: list[str], count: int) -> None:
    if len(names) != count:
        raise ModelError(path, "corrupted: it lists a tensor twice")


def _bounds(tensor: Tensor | NDArray[Any]) -> tuple[float, float] | None:
    """Minimum and maximum of a floating-point tensor, both NaN if it has a NaN; allocates no memory. None for other types
    and empty tensors."""
    if isinstance(tensor, np.ndarray):
        return (float(tensor.min()), float(tensor.max())) if tensor.dtype.kind == "f" and tensor.size else None
    if not (tensor.is_floating_point() and tensor.numel()):
        return None
    import torch

    low, high = (float(bound) for bound in torch.aminmax(tensor.detach()))
    return low, high


def not_finite(tensors: Mapping[str, Tensor] | Mapping[str, NDArray[Any]], *, logs: bool = False) -> str | None:
    """The name of the first tensor with NaN or infinite values. A scalar, such as a threshold, may be infinite, and log(0) is
    allowed with `logs`."""
    for name, tensor in tensors.items():
        if (bounds := _bounds(tensor)) is None:
            continue
        low, high = bounds
        if math.isnan(low) or (tensor.ndim and (high == math.inf or (low == -math.inf and not logs))):
            return name
    return None


def read_foreign(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The same for a file from another program, which has no checksum."""
    count = _check_header(path)
    try:
        with safe_open(path, framework="pt") as file:
            names = list(file.keys())
            metadata = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in names}
    except (SafetensorError, OSError, RuntimeError, ValueError, KeyError, AttributeError) as error:
        raise _unreadable(path, error) from None
    _refuse_duplicates(path, names, count)
    return tensors, metadata


def _check_header(path: Path) -> int:
    """The number of tensors. Refuses a file by its first bytes and sizes, before anything is parsed."""
    refuse_device(path)
    try:
        with path.open("rb") as file:
            size, start = os.fstat(file.fileno()).st_size, file.read(9)
            length = int.from_bytes(start[:8], "little")
            is_valid = len(start) == 9 and start[8:] == b"{" and 8 + length <= size
            count = len(_OFFSETS.findall(file.read(length - 1))) if is_valid and length <= MAX_HEADER_BYTES else 0
    except FileNotFoundError:
        raise ModelError(path, "file not found") from None
    except OSError as error:
        raise ResourceError(path, f"cannot read: {error.strerror}") from None
    if not is_valid:
        if start.startswith(b"PK\x03\x04") or (start[:1] == b"\x80" and start[1:2] in b"\x02\x03\x04\x05"):
            raise ModelError(path, "pickle files can run code and are not loaded", "convert it to safetensors")
        raise ModelError(path, f"corrupted or not a safetensors file: its header does not match its size of {size} bytes")
    if length > MAX_HEADER_BYTES:
        raise ModelError(path, f"header of {length} bytes exceeds the limit of {MAX_HEADER_BYTES}")
    if count > MAX_TENSORS:
        raise ModelError(path, f"{count} tensors exceed the limit of {MAX_TENSORS}")
    return count


def _read_header(path: Path) -> tuple[Any, int]:
    """The header (None if it is not valid JSON) and its end."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        with suppress(ValueError, RecursionError):
            return json.loads(file.read(length)), 8 + length
    return None, 8 + length


def _check_sum(path: Path) -> None:
    """Refuse a file with a wrong checksum: the format itself would load it with wrong numbers."""
    header, start = _read_header(path)
    with path.open("rb") as file:
        file.seek(start)
        metadata = header.get("__metadata__") if isinstance(header, dict) else None
        checksum = metadata.pop(_CHECKSUM, None) if isinstance(metadata, dict) else None
        if checksum is None:
            raise ModelError(path, "corrupted or not written by weft (it has no checksum)")
        digest = hashlib.sha256(_packed(header))
        while part := file.read(1 << 20):
            digest.update(part)
    if digest.hexdigest() != checksum:
        raise ModelError(path, "checksum mismatch; the file is corrupted")


def _shared(path: Path, text: str) -> dict[str, str]:
    owners: Any = None
    with suppress(ValueError, RecursionError):
        owners = json.loads(text)
    if not isinstance(owners, dict) or not all(isinstance(owner, str) for owner in owners.values()):
        raise ModelError(path, "corrupted: its list of shared tensors is invalid")
    return owners
