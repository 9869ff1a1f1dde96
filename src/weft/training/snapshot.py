"""Copies of tensors in host memory, from which files are written while training goes on.

Weights, optimizer state and averages change only in an optimizer step, so they are copied during the forward and backward pass
that follows: by a thread on a CPU, by a stream of its own on a GPU. The next optimizer step waits for the copies.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from weft.tensors import TensorLayout, tensor_bytes, tensor_layout
from weft.training.background import BackgroundThread

CHUNK_BYTES = 64 << 20  # of host memory: page-locked memory is allocated in powers of two
SMALL_BYTES = 16 << 20  # so little is copied at once: a thread would take longer


class TensorFile(NamedTuple):
    """The content of a tensor file before it is copied."""

    tensors: Mapping[str, Tensor]
    metadata: Mapping[str, str] = {}
    volatile: frozenset[str] = frozenset()  # names of tensors that change outside optimizer steps, such as buffers


class HostBuffers:
    """Host memory for the data of files. It is allocated once per file and used again: a new page of memory takes several times
    as long to write to as an old one. For copies from a GPU, `device`, it is page-locked."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._lock = device, threading.Lock()
        self._chunks: dict[str, list[Tensor]] = {}
        self._stream: Any = None

    def stream(self) -> Any:
        """The stream of the GPU on which tensors are copied here."""
        self._stream = self._stream or torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        return self._stream

    def get(self, name: str, num_bytes: int) -> list[Tensor]:
        """Memory for a file, in chunks."""
        sizes = [min(CHUNK_BYTES, num_bytes - start) for start in range(0, num_bytes, CHUNK_BYTES)]
        with self._lock:
            if [len(chunk) for chunk in self._chunks.get(name, [])] != sizes:
                self._chunks.pop(name, None)  # frees its memory first
                self._chunks[name] = [self._allocate(size) for size in sizes]
            return self._chunks.setdefault(name, [])

    def _allocate(self, size: int) -> Tensor:
        if self._device.type == "cuda":
            with torch.cuda.device(self._device):  # another thread would open a context on the first GPU
                return torch.empty(size, dtype=torch.uint8, pin_memory=True)
        memory = np.empty(size, dtype=np.uint8)  # unlike torch, NumPy asks for large pages
        memory.fill(0)
        return torch.from_numpy(memory)


def _flat_bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def _pieces(layout: TensorLayout, chunks: list[Tensor], name: str, source: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Pairs of memory and bytes to copy there, for one tensor of a file: it may cross the boundary between chunks."""
    start, end = layout.header[name]["data_offsets"]
    for index in range(start // CHUNK_BYTES, -(-end // CHUNK_BYTES)):
        first, last = max(start, index * CHUNK_BYTES), min(end, (index + 1) * CHUNK_BYTES)
        yield chunks[index][first - index * CHUNK_BYTES : last - index * CHUNK_BYTES], source[first - start : last - start]


class Snapshot:
    """The tensors of several files at one moment. The thread that trains calls `start` and `wait`, the thread that writes calls
    `finish` and `data`."""

    def __init__(self, files: Mapping[str, TensorFile], buffers: HostBuffers | None, *, prefix: str = "") -> None:
        self.layouts = {name: tensor_layout(file.tensors, file.metadata) for name, file in files.items()}
        self._files, self._buffers, self._prefix = files, buffers, prefix
        self._chunks: dict[str, list[Tensor]] = {}
        self._event: Any = None
        self._thread: BackgroundThread | None = None
        self._error: BaseException | None = None  # why the thread could not copy
        tensors = [tensor for file in files.values() for tensor in file.tensors.values()]
        self._device = next((tensor.device for tensor in tensors if tensor.is_cuda), torch.device("cpu"))

    @property
    def is_copied(self) -> bool:
        """Whether the files are written from copies. Without host memory for copies, training waits until they are written."""
        return self._buffers is not None

    def reserve(self) -> None:
        """Allocate the host memory."""
        if self._buffers is not None:
            self._reserved(self._buffers)

    def num_bytes(self) -> int:
        return sum(layout.num_bytes() for layout in self.layouts.values())

    def start(self, thread: BackgroundThread) -> None:
        """Start to copy. The tensors must not change before `wait`."""
        if self._buffers is None:
            return
        if self._device.type == "cuda":
            self._start_on_stream(self._buffers)
        elif self.num_bytes() <= SMALL_BYTES:
            self._copy_all(self._buffers)
        else:
            self._files = {name: _copy_volatile(file) for name, file in self._files.items()}
            self._thread = thread
            thread.submit(self._prefix, partial(self._copy_in_thread, self._buffers))

    def wait(self) -> None:
        """Wait until the tensors may change. On a GPU, only the next kernels wait, not the host."""
        if self._event is not None:
            torch.cuda.current_stream(self._device).wait_event(self._event)
        if self._thread is not None:
            self._thread.wait(self._prefix)
            self._thread.raise_error()

    def finish(self) -> None:
        """Wait until everything is in host memory."""
        if self._event is not None:
            self._event.synchronize()
        if self._thread is not None:
            self._thread.wait(self._prefix)
        if self._error is not None:
            raise self._error

    def data(self, name: str) -> Iterator[memoryview]:
        """The data of a file."""
        if self.is_copied:
            yield from (chunk.numpy().data for chunk in self._chunks[name])
        else:
            yield from tensor_bytes(dict(self._files[name].tensors), self.layouts[name].names)

    # ---- copies

    def _copy_in_thread(self, buffers: HostBuffers) -> None:
        try:
            self._copy_all(buffers)
        except BaseException as error:
            self._error = error
            raise

    def _copy_all(self, buffers: HostBuffers) -> None:
        """Copy from host memory to host memory, in this thread alone: NumPy starts no threads for it."""
        chunks = self._reserved(buffers)
        for file, name, source in self._sources():
            for target, piece in _pieces(self.layouts[file], chunks[file], name, _flat_bytes(source)):
                np.copyto(target.numpy(), piece.numpy())
        self._files, self._chunks = {}, chunks

    def _start_on_stream(self, buffers: HostBuffers) -> None:
        chunks, current = self._reserved(buffers), torch.cuda.current_stream(self._device)
        stream = buffers.stream()
        stream.wait_stream(current)
        # what the next forward pass may change comes first, and the forward pass waits for it
        current.wait_event(self._copy_on_stream(stream, chunks, is_volatile=True))
        self._event = self._copy_on_stream(stream, chunks, is_volatile=False)
        self._files, self._chunks = {}, chunks

    def _copy_on_stream(self, stream: Any, chunks: Mapping[str, list[Tensor]], *, is_volatile: bool) -> Any:
        """Copy the tensors that are volatile, or those that are not. Returns the event after the last copy."""
        sources = [source for source in self._sources() if (source[1] in self._files[source[0]].volatile) is is_volatile]
        with torch.cuda.stream(stream):
            for file, name, source in sources:
                flat = _flat_bytes(source)
                if flat.is_cuda:
                    flat.record_stream(stream)  # if it is freed, its memory is not used again before the copy
                for target, piece in _pieces(self.layouts[file], chunks[file], name, flat):
                    target.copy_(piece, non_blocking=True)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(stream)
        return event

    def _reserved(self, buffers: HostBuffers) -> dict[str, list[Tensor]]:
        return {name: buffers.get(f"{self._prefix}/{name}", layout.num_bytes()) for name, layout in self.layouts.items()}

    def _sources(self) -> Iterator[tuple[str, str, Tensor]]:
        for file, layout in self.layouts.items():
            for name in layout.names:
                yield file, name, self._files[file].tensors[name]


def _copy_volatile(file: TensorFile) -> TensorFile:
    tensors = {name: tensor.clone() if name in file.volatile else tensor for name, tensor in file.tensors.items()}
    return file._replace(tensors=tensors)
