"""Tensor files: safetensors with a checksum. Corrupted files and pickles are refused."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from weft.errors import ModelError, ResourceError
from weft.files import atomic_write, refuse_device

if TYPE_CHECKING:
    from torch import Tensor

# limits on files from other programs: a million empty tensors fit into a small header
MAX_HEADER_BYTES = 16 * 2**20
MAX_TENSORS = 65_536
# fmt: off
DTYPES = {  # torch to safetensors
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "bool": "BOOL",
    "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8",
    "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8",
}
NUMPY_DTYPES = {  # safetensors to NumPy; types that NumPy lacks are read as raw bits
    **{code: np.dtype(name) for name, code in DTYPES.items() if "float8" not in name and name != "bfloat16"},
    "BF16": np.dtype("uint16"), "F8_E4M3": np.dtype("uint8"), "F8_E5M2": np.dtype("uint8"),
}
# fmt: on
# entries of the metadata
_TIED = "weft.tied"  # JSON: names of tied tensors, and the name that each is stored under
_CHECKSUM = "weft.sha256"  # of the header without this entry, and of the data
_WRITE_BYTES = 4 << 20  # hashed and written at a time: fits into the cache of a processor
T = TypeVar("T")
_DATA_OFFSETS = re.compile(rb'"data_offsets"\s*:\s*\[')


class TensorLayout(NamedTuple):
    """Where the tensors of a file are stored: the header without a checksum, and their names in the order of the data."""

    header: dict[str, Any]
    names: list[str]

    def num_bytes(self) -> int:
        """The size of the data."""
        return int(self.header[self.names[-1]]["data_offsets"][1]) if self.names else 0


def _address(tensor: Tensor | NDArray[Any]) -> tuple[Any, ...]:
    """What tied tensors have in common: their memory, and how it is read."""
    if isinstance(tensor, np.ndarray):
        return tensor.ctypes.data, tensor.dtype, tensor.shape, tensor.strides
    return tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


def tensor_layout(tensors: Mapping[str, Tensor | NDArray[Any]], metadata: Mapping[str, str] | None = None) -> TensorLayout:
    """The layout of a file with these tensors. Tied tensors are stored once, under the first name."""
    stored_names: dict[tuple[Any, ...], str] = {}
    tied: dict[str, str] = {}
    for name, tensor in tensors.items():
        # all tensors without elements have the address 0
        if tensor.nbytes and (stored := stored_names.setdefault(_address(tensor), name)) != name:
            tied[name] = stored
    # large elements first, so that every tensor is aligned to its element size
    names = sorted((name for name in tensors if name not in tied), key=lambda name: (-tensors[name].itemsize, name))
    entries = dict(metadata or {}) | ({_TIED: json.dumps(tied)} if tied else {})
    header: dict[str, Any] = {"__metadata__": dict(sorted(entries.items()))}
    offset = 0
    for name in names:
        tensor, end = tensors[name], offset + tensors[name].nbytes
        header[name] = {
            "dtype": DTYPES[str(tensor.dtype).removeprefix("torch.")],
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    return TensorLayout(header, names)


def write_tensors(path: Path, tensors: Mapping[str, Tensor | NDArray[Any]], metadata: Mapping[str, str] | None = None) -> None:
    """Write a safetensors file; equal tensors give equal bytes. Tied tensors are stored once, under the first name."""
    layout = tensor_layout(tensors, metadata)
    write_layout(path, layout, lambda: tensor_bytes(tensors, layout.names))


def write_layout(path: Path, layout: TensorLayout, data: Callable[[], Iterable[memoryview]]) -> None:
    """Write a file of this layout with a checksum in its header. `data` is called twice: the checksum comes first."""
    digest = hashlib.sha256(_pack_header(layout.header))
    for part in data():
        digest.update(part)
    metadata = {**layout.header["__metadata__"], _CHECKSUM: digest.hexdigest()}
    raw = _pack_header({**layout.header, "__metadata__": metadata})
    with atomic_write(path) as write:
        write(len(raw).to_bytes(8, "little") + raw)
        for part in data():
            write(part)


def write_listed(path: Path, layout: TensorLayout, data: Iterable[memoryview]) -> dict[str, Any]:
    """Write a file of this layout for a directory with a manifest, and return its entry there. The checksum is computed while
    the data is written, so the header has none."""
    raw = _pack_header(layout.header)
    digest, size = hashlib.sha256(), 0
    with atomic_write(path) as write:
        for part in chain([memoryview(len(raw).to_bytes(8, "little") + raw)], data):
            for start in range(0, len(part), _WRITE_BYTES):
                piece = part[start : start + _WRITE_BYTES]
                digest.update(piece)
                write(piece)
            size += len(part)
    return {"size": size, "sha256": digest.hexdigest()}


def _pack_header(header: Mapping[str, Any]) -> bytes:
    raw = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    return raw + b" " * (-len(raw) % 8)


def tensor_bytes(tensors: Mapping[str, Tensor | NDArray[Any]], names: list[str]) -> Iterator[memoryview]:
    """The bytes of one tensor at a time, so that a GPU model is never copied to host memory as a whole."""
    for name in names:
        if tensors[name].nbytes:
            yield _bytes_of(tensors[name])


def _bytes_of(tensor: Tensor | NDArray[Any]) -> memoryview:
    if isinstance(tensor, np.ndarray):
        return np.ascontiguousarray(tensor).reshape(-1).view(np.uint8).data
    import torch

    return tensor.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8).numpy().data


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors by name, memory-mapped copy-on-write, and the metadata."""
    tensors, metadata = read_external(path)
    return _verify_and_tie(path, tensors, metadata), metadata


def read_listed(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """`read_tensors` for a file in a directory whose manifest was verified."""
    tensors, metadata = read_external(path)
    metadata.pop(_CHECKSUM, None)  # earlier versions wrote one into these files as well
    return _tie(path, tensors, metadata), metadata


def read_arrays(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """`read_tensors` with NumPy arrays, without importing torch."""
    arrays, metadata = read_external_arrays(path)
    return _verify_and_tie(path, arrays, metadata), metadata


def read_external_arrays(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """`read_arrays` for a file of another program, which has no checksum."""
    count = _check_header(path)
    try:
        with safe_open(path, framework="np") as file:  # checks that dtypes, shapes and offsets fit each other and the file
            names, metadata = list(file.keys()), dict(file.metadata() or {})
    except (SafetensorError, OSError, RuntimeError, ValueError) as error:
        raise _unreadable(path, error) from None
    _refuse_duplicates(path, names, count)
    return _map_arrays(path, names), metadata


def _map_arrays(path: Path, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Arrays by name, memory-mapped copy-on-write."""
    header, start = _read_header(path)
    data, arrays = np.memmap(path, np.uint8, mode="c").view(np.ndarray)[start:], dict[str, NDArray[Any]]()
    try:
        for name in names:
            begin, end = header[name]["data_offsets"]
            arrays[name] = data[begin:end].view(NUMPY_DTYPES[header[name]["dtype"]]).reshape(header[name]["shape"])
    except (KeyError, TypeError, ValueError) as error:  # an unknown dtype, or the file was replaced meanwhile
        raise _unreadable(path, error) from None
    return arrays


def _verify_and_tie(path: Path, tensors: dict[str, T], metadata: dict[str, str]) -> dict[str, T]:
    """Verify the checksum, and return the tensors with tied ones under all their names. The entries of this module are removed
    from the metadata."""
    tensors = _tie(path, tensors, metadata)
    _verify_checksum(path)
    del metadata[_CHECKSUM]
    return tensors


def _tie(path: Path, tensors: dict[str, T], metadata: dict[str, str]) -> dict[str, T]:
    """The tensors with tied ones under all their names."""
    for name, stored_name in _parse_tied(path, metadata.pop(_TIED, "{}")).items():
        if name in tensors or stored_name not in tensors:
            raise ModelError(path, f"corrupted: {name!r} cannot share the memory of {stored_name!r}")
        tensors[name] = tensors[stored_name]
    return tensors


def read_metadata(path: Path) -> dict[str, str]:
    """The metadata alone; the tensors are not verified."""
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
    """Minimum and maximum of a floating-point tensor, NaN if it has a NaN; None for other dtypes and empty tensors.

    Allocates no memory.
    """
    if isinstance(tensor, np.ndarray):
        return (float(tensor.min()), float(tensor.max())) if tensor.dtype.kind == "f" and tensor.size else None
    if not (tensor.is_floating_point() and tensor.numel()):
        return None
    import torch

    low, high = (float(bound) for bound in torch.aminmax(tensor.detach()))
    return low, high


def not_finite(tensors: Mapping[str, Tensor] | Mapping[str, NDArray[Any]], *, logs: bool = False) -> str | None:
    """The name of the first tensor with NaN or infinite values; None if all are finite. A scalar, such as a threshold, may be
    infinite. `logs`: -inf is allowed, as log(0)."""
    if _all_finite_on_gpu(tensors):
        return None
    for name, tensor in tensors.items():
        if (bounds := _bounds(tensor)) is None:
            continue
        low, high = bounds
        if math.isnan(low) or (tensor.ndim and (high == math.inf or (low == -math.inf and not logs))):
            return name
    return None


def _all_finite_on_gpu(tensors: Mapping[str, Tensor] | Mapping[str, NDArray[Any]]) -> bool:
    """Whether all tensors are on a GPU, and finite: the host waits for the GPU once, not once per tensor."""
    floats = list[Any]()
    for tensor in tensors.values():
        if isinstance(tensor, np.ndarray) or tensor.device.type == "cpu":
            return False
        if tensor.is_floating_point() and tensor.numel():
            floats.append(tensor.detach())
    return all_finite(floats)


def all_finite(tensors: Sequence[Tensor]) -> bool:
    """Whether floating-point tensors of one device have neither NaN nor infinite values, with a single wait for a GPU."""
    if not tensors:
        return True
    import torch

    norms = torch._foreach_norm(list(tensors), ord=math.inf)
    return bool(torch.stack([norm.double() for norm in norms]).isfinite().all())


def read_external(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """`read_tensors` for a file of another program, which has no checksum."""
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
    """The number of tensors. Refuses invalid and oversized files before the header is parsed."""
    refuse_device(path)
    try:
        with path.open("rb") as file:
            size, prefix = os.fstat(file.fileno()).st_size, file.read(9)
            length = int.from_bytes(prefix[:8], "little")
            is_valid = len(prefix) == 9 and prefix[8:] == b"{" and 8 + length <= size
            count = len(_DATA_OFFSETS.findall(file.read(length - 1))) if is_valid and length <= MAX_HEADER_BYTES else 0
    except FileNotFoundError:
        raise ModelError(path, "file not found") from None
    except OSError as error:
        raise ResourceError(path, f"cannot read: {error.strerror}") from None
    if not is_valid:
        if prefix.startswith(b"PK\x03\x04") or (prefix[:1] == b"\x80" and prefix[1:2] in b"\x02\x03\x04\x05"):
            raise ModelError(path, "pickle files can run code and are not loaded", "convert it to safetensors")
        raise ModelError(path, f"corrupted or not a safetensors file: its header does not match its size of {size} bytes")
    if length > MAX_HEADER_BYTES:
        raise ModelError(path, f"header of {length} bytes exceeds the limit of {MAX_HEADER_BYTES}")
    if count > MAX_TENSORS:
        raise ModelError(path, f"{count} tensors exceed the limit of {MAX_TENSORS}")
    return count


def _read_header(path: Path) -> tuple[Any, int]:
    """The header, None if it is invalid JSON, and the offset of the data."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        with suppress(ValueError, RecursionError):
            return json.loads(file.read(length)), 8 + length
    return None, 8 + length


def _verify_checksum(path: Path) -> None:
    """Refuse a file with a wrong checksum. The format has none: safetensors would load wrong numbers."""
    header, start = _read_header(path)
    with path.open("rb") as file:
        file.seek(start)
        metadata = header.get("__metadata__") if isinstance(header, dict) else None
        checksum = metadata.pop(_CHECKSUM, None) if isinstance(metadata, dict) else None
        if checksum is None:
            raise ModelError(path, "corrupted or not written by weft (it has no checksum)")
        digest = hashlib.sha256(_pack_header(header))
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    if digest.hexdigest() != checksum:
        raise ModelError(path, "checksum mismatch; the file is corrupted")


def _parse_tied(path: Path, text: str) -> dict[str, str]:
    """Names of tied tensors, and the name that each is stored under."""
    tied: Any = None
    with suppress(ValueError, RecursionError):
        tied = json.loads(text)
    if not isinstance(tied, dict) or not all(isinstance(name, str) for name in tied.values()):
        raise ModelError(path, "corrupted: its list of tied tensors is invalid")
    return tied
