"""File writing and reading: writes are atomic under any failure, and damaged files are rejected with their name."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import io
import json
import math
import os
import pickle
import random
import re
import signal
import subprocess
import time
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from weft import files
from weft import log as log_files
from weft import tensors as tensor_files
from weft.errors import ModelError, ResourceError, WeftError
from weft.lock import Lock


def error_message(kind: type[WeftError], call: Callable[[], object]) -> str:
    with pytest.raises(kind) as caught:
        call()
    return str(caught.value)


class Faulty:
    """The `os` module of files.py; its n-th call fails with the given error, and earlier writes are short."""

    CALLS = ("open", "write", "fsync", "close", "replace", "rename", "ftruncate", "pwrite")

    def __init__(self, fail_at: int, number: int) -> None:
        self.count, self.fail_at, self.number = 0, fail_at, number
        self.name = ""

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if name not in self.CALLS:
            return real

        def call(*values: Any) -> Any:
            self.count += 1
            if self.count == self.fail_at:
                self.name = name
                if name == "close":  # the kernel frees the descriptor even if it reports an error
                    os.close(*values)
                raise OSError(self.number, os.strerror(self.number))
            if name == "write":
                return os.write(values[0], values[1][: max(1, len(values[1]) // 2)])
            return real(*values)

        return call


# ---- one file


def test_written_file_has_its_content_and_the_default_mode(tmp_path):
    path = tmp_path / "x"
    old = os.umask(0o027)
    try:
        files.write_bytes(path, b"\x00one")
    finally:
        os.umask(old)
    assert path.read_bytes() == b"\x00one"
    assert path.stat().st_mode & 0o777 == 0o640
    files.write_text(path, "zwei ü\r\n")
    assert path.read_bytes() == "zwei ü\r\n".encode()
    assert os.listdir(tmp_path) == ["x"]


def test_json_keeps_key_order_ends_in_a_newline_and_rejects_nan(tmp_path):
    path = tmp_path / "x.json"
    files.write_json(path, {"b": [1.5, float("nan"), (float("inf"),)], "a": "ü"})
    assert path.read_text() == '{\n  "b": [\n    1.5,\n    null,\n    [\n      null\n    ]\n  ],\n  "a": "ü"\n}\n'
    assert files.read_json(path) == {"b": [1.5, None, [None]], "a": "ü"}


@pytest.mark.parametrize("raw", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b'{"a": 1} x'])
def test_damaged_json_is_rejected_by_name(tmp_path, raw):
    path = tmp_path / "train_state.json"
    path.write_bytes(raw)
    message = error_message(ModelError, lambda: files.read_json(path))
    assert message.startswith(f"{path}: corrupted: invalid JSON: ")
    assert "\n" not in message


def test_missing_and_unreadable_json(tmp_path):
    path = tmp_path / "train_state.json"
    assert error_message(ModelError, lambda: files.read_json(path)) == f"{path}: file not found"
    assert error_message(ResourceError, lambda: files.read_json(tmp_path)) == f"{tmp_path}: cannot read: Is a directory"


def test_writing_to_a_pipe_keeps_the_pipe(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = subprocess.Popen(["cat", path], stdout=subprocess.PIPE)
    files.write_bytes(path, b"piped", user_path=True)
    assert reader.communicate(timeout=20)[0] == b"piped"
    assert path.is_fifo() and os.listdir(tmp_path) == ["pipe"]


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="there is no /dev/full here")
def test_write_errors_of_a_device_are_reported(tmp_path):
    link = tmp_path / "link"
    link.symlink_to("/dev/full")
    for path in (link, Path("/dev/full")):
        message = error_message(ResourceError, lambda path=path: files.write_bytes(path, b"x", user_path=True))
        assert message == f"{path}: no space left on disk; the data before that was written; free some space and try again"
    assert Path("/dev/full").is_char_device() and link.is_symlink()


def test_proc_paths_are_written_in_place_and_dev_shm_is_an_ordinary_directory(tmp_path):
    with open(tmp_path / "out", "w+b") as out:
        files.write_bytes(Path(f"/proc/self/fd/{out.fileno()}"), b"given", user_path=True)
        assert (tmp_path / "out").read_bytes() == b"given"
    assert not files._is_special(Path("/dev/shm/run/a.json")) and files._is_special(Path("/dev/stdout"))


def test_a_failing_block_keeps_the_old_file_and_raises_its_own_error(tmp_path):
    path = tmp_path / "x"
    files.write_bytes(path, b"old")
    with pytest.raises(OSError, match="elsewhere"), files.atomic_write(path) as write:
        write(b"new")
        raise OSError(errno.ENOENT, "elsewhere")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["x"]


def test_chunks_are_written_to_one_file(tmp_path):
    with files.atomic_write(tmp_path / "x") as write:
        for number in range(100):
            write(memoryview(torch.full((3,), number, dtype=torch.int16).numpy()))
        assert not (tmp_path / "x").exists()
    assert (tmp_path / "x").read_bytes() == b"".join(bytes([n, 0] * 3) for n in range(100))


SEEN = {
    errno.ENOSPC: "no space left on disk; {}; free some space and try again",
    errno.EDQUOT: "disk quota exceeded; {}; free some space and try again",
    errno.EROFS: "cannot write: Read-only file system; {}",
    errno.EACCES: "cannot write: Permission denied; {}",
    errno.EIO: "cannot write: Input/output error; {}",
}


def _tensors(scale: float) -> dict[str, torch.Tensor]:
    return {"a": torch.full((3, 5), scale), "b": torch.arange(4)}


WRITERS: dict[str, Callable[[Path, int], None]] = {
    "bytes": lambda path, value: files.write_bytes(path, b"%d" % value * 50),
    "json": lambda path, value: files.write_json(path, {"value": value}),
    "tensors": lambda path, value: tensor_files.write_tensors(path, _tensors(value), {"value": str(value)}),
}


@pytest.mark.parametrize("number", SEEN, ids=errno.errorcode.get)
@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS.keys())
def test_writes_are_atomic_whichever_call_fails(tmp_path, monkeypatch, write, number):
    path = tmp_path / "x"
    write(path, 2)
    new = path.read_bytes()
    write(path, 1)
    old = path.read_bytes()
    failed, n = [], 0
    while True:
        n += 1
        faulty = Faulty(n, number)
        with monkeypatch.context() as patch:
            patch.setattr(files, "os", faulty)
            if not _fails(lambda: write(path, 2), path, number, replaced="replace" in failed):
                break
        failed.append(faulty.name)
        assert path.read_bytes() == (new if "replace" in failed[:-1] else old)
        assert os.listdir(tmp_path) == ["x"]
    assert path.read_bytes() == new
    assert failed[0] == "open" and failed.count("write") >= 6
    assert failed[-6:] == ["fsync", "close", "replace", "open", "fsync", "close"]


def _fails(call: Callable[[], None], path: Path, number: int, *, replaced: bool) -> bool:
    try:
        call()
    except ResourceError as error:
        state = "it is complete, but a power failure could undo it" if replaced else "nothing was changed"
        assert str(error) == f"{path}: {SEEN[number].format(state)}"
        return True
    return False


def test_a_directory_without_fsync_support_is_not_an_error(tmp_path, monkeypatch):
    for n in range(1, 12):
        monkeypatch.setattr(files, "os", faulty := Faulty(n, errno.EINVAL))
        try:
            files.write_bytes(tmp_path / "x", b"four")
        except ResourceError:
            continue
        assert faulty.name == "fsync"
        return
    pytest.fail("never reached")


def test_missing_directory_and_missing_permission(tmp_path):
    path = tmp_path / "none" / "x"
    assert error_message(ResourceError, lambda: files.write_bytes(path, b"")) == (
        f"{path}: cannot write: No such file or directory; nothing was changed"
    )
    if os.getuid() == 0:
        return  # root may write anywhere
    tmp_path.chmod(0o500)
    path = tmp_path / "x"
    assert error_message(ResourceError, lambda: files.write_bytes(path, b"")) == (
        f"{path}: cannot write: Permission denied; nothing was changed"
    )


def test_a_full_disk(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)], capture_output=True)
    if mount.returncode:
        pytest.skip("no right to mount a small disk here")
    try:
        path = disk / "model.safetensors"
        tensor_files.write_tensors(path, {"a": torch.zeros(20_000)})
        old = path.read_bytes()
        message = error_message(ResourceError, lambda: tensor_files.write_tensors(path, {"a": torch.ones(60_000)}))
        assert message == f"{path}: no space left on disk; nothing was changed; free some space and try again"
        assert path.read_bytes() == old
        assert os.listdir(disk) == ["model.safetensors"]
        with log_files.Log(disk / "metrics.jsonl") as log:
            log.write({"step": 1})
            message = error_message(ResourceError, lambda: log.write({"text": "x" * 300_000}))
            assert message == (f"{log.path}: no space left on disk; the line was not written; free some space and try again")
            log.write({"step": 2})
        assert log_files.read_log(log.path) == [{"step": 1}, {"step": 2}]
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_only_temporary_files_are_removed(tmp_path):
    other_files = [tmp_path / name for name in ("model.safetensors", ".lock", ".x.tmp", "x.tmp-1-0123456789ab")]
    for path in other_files:
        path.touch()
    temporary = [files.temporary_path(tmp_path / name) for name in ("model.safetensors", "000400", "n" * 255)]
    temporary[0].touch()
    temporary[1].mkdir()
    (temporary[1] / "model.safetensors").touch()
    temporary[2].touch()
    assert sorted(files.remove_temporary_files(tmp_path)) == sorted(temporary)
    assert sorted(tmp_path.iterdir()) == sorted(other_files)


# ---- logs


def test_a_log_is_appended_by_lines_and_truncated_on_resume(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with log_files.Log(path) as log:
        assert log.num_bytes == 0
        log.write({"step": 1, "loss": 2.5})
        log.sync()
        mark = log.num_bytes
        assert path.stat().st_size == mark
        log.write({"step": 2, "loss": float("nan")})
    first = '{{"step": 1, "loss": 2.5, "crc32": "{:08x}"}}\n'.format(zlib.crc32(b'{"step": 1, "loss": 2.5}'))
    second = '{{"step": 2, "loss": null, "crc32": "{:08x}"}}\n'.format(zlib.crc32(b'{"step": 2, "loss": null}'))
    assert path.read_text() == first + second
    with log_files.Log(path) as log:
        assert not log.restore(first.encode())
        assert log.num_bytes == mark
        log.write({"step": 2, "word": "ü"})
        assert log.num_bytes == path.stat().st_size
        log.close()
    second = '{{"step": 2, "word": "ü", "crc32": "{:08x}"}}\n'.format(zlib.crc32('{"step": 2, "word": "ü"}'.encode()))
    assert path.read_bytes() == (first + second).encode()
    assert log_files.read_log(path, allow_text=True) == [{"step": 1, "loss": 2.5}, {"step": 2, "word": "ü"}]


@pytest.mark.parametrize("content", [b"", b"{}\n", b"{}\n[]\n{}\n"], ids=["empty", "shorter", "other"])
def test_a_damaged_log_is_restored(tmp_path, content):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(content)
    with log_files.Log(path) as log:
        assert log.restore(b"{}\n{}\n")
        assert log.num_bytes == 6
    assert path.read_bytes() == b"{}\n{}\n"


def test_a_log_with_missing_lines_is_rejected(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with log_files.Log(path) as log:
        log.write({"step": 1})
    length = path.stat().st_size
    with path.open("ab") as torn:
        torn.write(b'{"step": 2')
    assert log_files.read_log(path, min_bytes=length) == [{"step": 1}]
    assert error_message(ModelError, lambda: log_files.read_log(path, min_bytes=length + 1)) == (
        f"{path}: corrupted: {length} bytes, but the checkpoint expects {length + 1}; run weft train again to restore it"
    )


def test_log_lines_are_written_atomically(tmp_path, monkeypatch):
    path = tmp_path / "metrics.jsonl"
    with log_files.Log(path) as log:
        log.write({"step": 1})
        for n in range(1, 100):
            with monkeypatch.context() as patch:
                faulty = Faulty(n, errno.ENOSPC)
                patch.setattr(files, "os", faulty)
                patch.setattr(log_files, "os", faulty)
                try:
                    log.write({"step": 2})
                    break
                except ResourceError as error:
                    assert str(error) == (
                        f"{path}: no space left on disk; the line was not written; free some space and try again"
                    )
            assert log_files.read_log(path) == [{"step": 1}]
        assert n > 4
        assert log_files.read_log(path) == [{"step": 1}, {"step": 2}]
        monkeypatch.setattr(log_files, "os", Faulty(1, errno.EIO))
        assert error_message(ResourceError, log.sync) == (
            f"{path}: cannot write: Input/output error; its last lines may not survive a power failure"
        )


# ---- tensors


BITS = {torch.bfloat16: torch.uint16, torch.float8_e4m3fn: torch.uint8, torch.float8_e5m2: torch.uint8}
READERS = [tensor_files.read_tensors, tensor_files.read_arrays]


@pytest.mark.parametrize("kind", tensor_files.DTYPES)
def test_tensors_of_every_dtype_and_shape_round_trip(tmp_path, kind):
    path = tmp_path / "x.safetensors"
    numbers = torch.randint(0, 2, (3, 4), generator=torch.Generator().manual_seed(0)).to(getattr(torch, kind))
    tensors = {
        "table": numbers,
        "turned": numbers.t(),
        "part": numbers[:, 1:3],
        "one": numbers[1, 1],
        "none": numbers[:0],
        "odd": torch.tensor([True, False, True]),
        "data_offsets": torch.zeros(2),
        "ü/\n": torch.tensor(7, dtype=torch.uint8),
    }
    tensor_files.write_tensors(path, tensors, {"note": "ü"})
    actual, metadata = tensor_files.read_tensors(path)
    assert metadata == {"note": "ü"}
    assert actual.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert actual[name].dtype is tensor.dtype and actual[name].shape == tensor.shape
        assert actual[name].tolist() == tensor.tolist()
    arrays, metadata = tensor_files.read_arrays(path)
    assert metadata == {"note": "ü"} and arrays.keys() == tensors.keys()
    for name, tensor in tensors.items():
        expected = (
            tensor if tensor.dtype not in BITS else tensor.contiguous().view(BITS[tensor.dtype])
        )  # numpy does not have this type
        assert str(arrays[name].dtype) == str(expected.dtype).removeprefix("torch.") and arrays[name].shape == tensor.shape
        assert arrays[name].tolist() == expected.tolist()


def test_numpy_arrays_give_the_same_file_as_tensors(tmp_path):
    table = np.arange(6.0).reshape(2, 3)
    arrays = {
        "a": table,
        "b": np.array(True),
        "c": np.zeros(0, np.float32),
        "tied": table,
        "part": table[:1],
        "columns": table.T,
    }
    tensor_files.write_tensors(tmp_path / "1", arrays)
    tensor_files.write_tensors(tmp_path / "2", {name: torch.from_numpy(array) for name, array in arrays.items()})
    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()
    read, _ = tensor_files.read_arrays(tmp_path / "1")
    assert {name: array.tolist() for name, array in read.items()} == {name: array.tolist() for name, array in arrays.items()}


def test_non_finite_values_are_detected_in_arrays_and_tensors():
    for values, actual, logs in (
        ([1.0, math.nan], "a", "a"),
        ([math.inf], "a", "a"),
        ([-math.inf], "a", None),
        ([1.0], None, None),
        ([], None, None),
        (math.inf, None, None),
        (math.nan, "a", "a"),
    ):
        for item in (np.array(values, np.float32), torch.tensor(values)):
            assert tensor_files.not_finite({"a": item}) == actual
            assert tensor_files.not_finite({"a": item}, logs=True) == logs
    assert tensor_files.not_finite({"a": np.array([1, 2])}) is None


def test_tied_tensors_are_saved_once_and_loaded_tied(tmp_path):
    path = tmp_path / "x.safetensors"
    table = torch.randn(1000, 8)
    tied = {"embed": table, "head": table.view(1000, 8), "half": table[:500], "zero": table[:0], "zero2": table[:0]}
    tensor_files.write_tensors(path, tied)
    assert path.stat().st_size < 1000 * 8 * 4 + 500 * 8 * 4 + 1000
    actual, metadata = tensor_files.read_tensors(path)
    assert metadata == {}
    assert actual["head"].data_ptr() == actual["embed"].data_ptr() != actual["half"].data_ptr()
    assert all(torch.equal(actual[name], tied[name]) for name in tied)
    arrays, _ = tensor_files.read_arrays(path)
    assert arrays["head"].ctypes.data == arrays["embed"].ctypes.data != arrays["half"].ctypes.data
    assert all(np.array_equal(arrays[name], tied[name].numpy()) for name in tied)


def test_the_same_tensors_give_the_same_bytes(tmp_path):
    a, b = torch.randn(3), torch.arange(5)
    tensor_files.write_tensors(tmp_path / "1", {"a": a, "b": b}, {"x": "1", "y": "2"})
    tensor_files.write_tensors(tmp_path / "2", {"b": b.clone(), "a": a.clone()}, {"y": "2", "x": "1"})
    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()


@pytest.mark.parametrize("read", READERS)
def test_reading_maps_the_file_read_only(tmp_path, read):
    path = tmp_path / "x.safetensors"
    tensor_files.write_tensors(path, {"a": torch.zeros(100_000)})
    before = path.read_bytes()
    first, second = read(path)[0]["a"], read(path)[0]["a"]
    assert str(path) in Path("/proc/self/maps").read_text()
    first += 1
    assert second.sum() == 0
    tensor_files.write_tensors(path, {"a": torch.ones(3)})  # replaced while mapped
    assert second.sum() == 0 and first.sum() == 100_000
    tensor_files.write_tensors(path, {"a": torch.zeros(100_000)})
    assert path.read_bytes() == before


class Bomb:
    """A pickle that leaves a mark when it is loaded."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


def pickles(mark: Path) -> Iterator[bytes]:
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        yield pickle.dumps(Bomb(mark), protocol=protocol)
        yield pickle.dumps({"weight": [Bomb(mark)] * 200}, protocol=protocol)
    for zipped in (True, False):
        buffer = io.BytesIO()
        torch.save({"weight": Bomb(mark)}, buffer, _use_new_zipfile_serialization=zipped)
        yield buffer.getvalue()


@pytest.mark.parametrize("read", READERS)
def test_a_renamed_pickle_is_never_loaded_and_safetensors_is_suggested(tmp_path, read):
    path, mark = tmp_path / "model.safetensors", tmp_path / "mark"
    told = 0
    for raw in pickles(mark):
        path.write_bytes(raw)
        message = error_message(ModelError, lambda: read(path))
        assert message.startswith((f"{path}: pickle files ", f"{path}: corrupted or ")) and "safetensors" in message
        told += message == f"{path}: pickle files can run code and are not loaded; convert it to safetensors"
        assert not mark.exists()
    assert told == 10  # protocols 0 and 1 have no magic bytes


def packed(header: bytes | dict[str, Any], body: bytes = b"", *, length: int | None = None) -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(raw) if length is None else length).to_bytes(8, "little") + raw + body


def entry(shape: list[int], offsets: list[int], dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


HEAD = "corrupted or not a safetensors file: "
FIRST = "corrupted or not a safetensors file: its header does not match its size of "
TWICE = "corrupted: it lists a tensor twice"
ONE = packed({"a": entry([1], [0, 4])}, b"1234")
DAMAGED = {
    "empty": (b"", FIRST + "0 bytes"),
    "short": (b"\x02\0\0", FIRST + "3 bytes"),
    "text": (b"once upon a time", FIRST + "16 bytes"),
    "no header": (packed(b"", b"1234"), FIRST + "12 bytes"),
    "header past the end": (packed(b"{}", length=3), FIRST + "10 bytes"),
    "header of 2^63 bytes": (packed(b"{}", length=2**63), FIRST + "10 bytes"),
    "cut": (ONE[:-1], HEAD),
    "longer": (ONE + b"5", HEAD),
    "not JSON": (packed(b"{{{{{{}}"), HEAD),
    "overlap": (packed({"a": entry([1], [0, 4]), "b": entry([1], [2, 6])}, b"123456"), HEAD),
    "hole": (packed({"a": entry([1], [0, 4]), "b": entry([1], [8, 12])}, b"1" * 12), HEAD),
    "negative": (packed({"a": entry([-1], [0, 4])}, b"1234"), HEAD),
    "overflow": (packed({"a": entry([2**62, 2**62], [0, 4])}, b"1234"), HEAD),
    "wrong shape": (packed({"a": entry([2], [0, 4])}, b"1234"), HEAD),
    "unknown type": (packed({"a": entry([1], [0, 4], "F33")}, b"1234"), HEAD),
    "backwards": (packed({"a": entry([1], [4, 0])}, b"1234"), HEAD),
    "twice": (packed(b'{"a":%s,"a":%s}' % ((json.dumps(entry([1], [0, 4])).encode(),) * 2), b"1234"), TWICE),
    "shares nothing": (
        packed({"__metadata__": {"weft.tied": '{"b": "c"}'}, "a": entry([1], [0, 4])}, b"1234"),
        "corrupted: 'b' cannot share the memory of 'c'",
    ),
    "shares itself": (
        packed({"__metadata__": {"weft.tied": '{"a": "a"}'}, "a": entry([1], [0, 4])}, b"1234"),
        "corrupted: 'a' cannot share the memory of 'a'",
    ),
    "shares a list": (
        packed({"__metadata__": {"weft.tied": "[1]"}, "a": entry([1], [0, 4])}, b"1234"),
        "corrupted: its list of tied tensors is invalid",
    ),
    "shares no JSON": (
        packed({"__metadata__": {"weft.tied": "{"}, "a": entry([1], [0, 4])}, b"1234"),
        "corrupted: its list of tied tensors is invalid",
    ),
}


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_or_malicious_tensor_file_is_rejected_by_name(tmp_path, case, read):
    raw, start = DAMAGED[case]
    path = tmp_path / "model.safetensors"
    path.write_bytes(raw)
    message = error_message(ModelError, lambda: read(path))
    assert message.startswith(f"{path}: {start}")
    assert message == f"{path}: {start}" or start == HEAD
    assert "\n" not in message


def test_a_truncated_tensor_file_is_rejected(tmp_path):
    path = tmp_path / "model.safetensors"
    tensor_files.write_tensors(path, _tensors(1), {"a": "b"})
    raw = path.read_bytes()
    for length in range(len(raw)):
        path.write_bytes(raw[:length])
        for read in READERS:
            assert str(path) in error_message(ModelError, lambda read=read: read(path))


@pytest.mark.parametrize("count", [100_000, 1_000_000])
@pytest.mark.parametrize("read", READERS)
def test_an_expensive_header_is_rejected_at_once(tmp_path, count, read):
    path = tmp_path / "model.safetensors"
    tensors = b",".join(b'"%d":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}' % n for n in range(count))
    path.write_bytes(raw := packed(b"{" + tensors + b"}"))
    before = time.process_time()
    message = error_message(ModelError, lambda: read(path))
    assert time.process_time() - before < 1
    assert message == (
        f"{path}: 100000 tensors exceed the limit of 65536"
        if count == 100_000
        else f"{path}: header of {len(raw) - 8} bytes exceeds the limit of 16777216"
    )


def test_missing_tensor_file(tmp_path):
    path = tmp_path / "model.safetensors"
    assert error_message(ModelError, lambda: tensor_files.read_tensors(path)) == f"{path}: file not found"
    assert (
        error_message(ResourceError, lambda: tensor_files.read_tensors(tmp_path)) == f"{tmp_path}: cannot read: Is a directory"
    )


# ---- folders


def checkpoint(folder: Path, value: int = 1) -> Path:
    folder.mkdir(parents=True)
    tensor_files.write_tensors(folder / "model.safetensors", _tensors(value))
    files.write_json(folder / "train_state.json", {"step": value})
    (folder / "parts").mkdir()
    files.write_bytes(folder / "parts" / "a", b"%d" % value)
    files.write_manifest(folder)
    return folder


def test_manifest_lists_size_and_hash_of_every_file(tmp_path):
    folder = checkpoint(tmp_path / "000400")
    listed = json.loads((folder / "manifest.json").read_text())
    assert listed["version"] == 1
    assert list(listed["files"]) == ["model.safetensors", "parts/a", "train_state.json"]
    assert listed["files"]["parts/a"] == {"size": 1, "sha256": hashlib.sha256(b"1").hexdigest()}
    (folder / ".DS_Store").touch()
    (folder / ".x").mkdir()
    (folder / ".x" / "y").touch()
    files.verify(folder)


def test_every_flipped_bit_is_detected(tmp_path):
    folder = checkpoint(tmp_path / "000400")
    chance = random.Random(0)
    for name in ("train_state.json", "model.safetensors", "parts/a", "manifest.json"):
        path = folder / name
        raw = path.read_bytes()
        for _ in range(50):
            bad = bytearray(raw)
            bad[chance.randrange(len(raw))] ^= 1 << chance.randrange(8)
            path.write_bytes(bad)
            message = error_message(ModelError, lambda: files.verify(folder))
            if name != "manifest.json":
                assert message == f"{path}: checksum mismatch; the file is corrupted"
        path.write_bytes(raw)
        files.verify(folder)


def test_missing_truncated_foreign_and_linked_files_are_named(tmp_path):
    folder = checkpoint(tmp_path / "000400")
    path = folder / "train_state.json"
    raw = path.read_bytes()
    path.write_bytes(raw[:-2])
    assert error_message(ModelError, lambda: files.verify(folder)) == (
        f"{path}: {len(raw) - 2} bytes, expected {len(raw)}; the file is corrupted"
    )
    path.unlink()
    assert error_message(ModelError, lambda: files.verify(folder)) == f"{path}: file not found (listed in manifest.json)"
    (tmp_path / "outside").write_bytes(raw)
    path.symlink_to(tmp_path / "outside")
    assert error_message(ModelError, lambda: files.verify(folder)) == (f"{path}: not a regular file")
    path.unlink()
    path.write_bytes(raw)
    (folder / "optimizer.safetensors").touch()
    assert error_message(ModelError, lambda: files.verify(folder)) == (
        f"{folder}/optimizer.safetensors: unexpected file (not in manifest.json)"
    )


def test_a_file_of_another_run_is_detected(tmp_path):
    one, two = checkpoint(tmp_path / "1", 1), checkpoint(tmp_path / "2", 2)
    os.replace(two / "model.safetensors", one / "model.safetensors")
    assert error_message(ModelError, lambda: files.verify(one)) == (
        f"{one}/model.safetensors: checksum mismatch; the file is corrupted"
    )


@pytest.mark.parametrize("listed", ["[]", "{}", '{"version": 1, "files": []}'])
def test_an_empty_manifest_is_rejected(tmp_path, listed):
    (tmp_path / "manifest.json").write_text(listed)
    assert error_message(ModelError, lambda: files.verify(tmp_path)) == (
        f"{tmp_path}/manifest.json: corrupted: it lists no files"
    )


def test_missing_newer_and_escaping_manifests_are_rejected(tmp_path):
    assert error_message(ModelError, lambda: files.verify(tmp_path)) == f"{tmp_path}: incomplete (manifest.json is missing)"
    manifest = tmp_path / "manifest.json"
    manifest.write_text('{"version": 2, "files": {}}')
    assert error_message(ModelError, lambda: files.verify(tmp_path)) == (
        f"{manifest}: format version 2 is not supported (expected 1)"
    )
    for name in ("../x", "/etc/passwd", "a/../manifest.json"):
        manifest.write_text(json.dumps({"version": 1, "files": {name: {"size": 1, "sha256": ""}}}))
        assert error_message(ModelError, lambda: files.verify(tmp_path)).endswith("file not found (listed in manifest.json)")
    (tmp_path / "x").touch()
    manifest.write_text('{"version": 1, "files": {"x": 3}}')
    assert error_message(ModelError, lambda: files.verify(tmp_path)) == (
        f"{tmp_path}/x: 0 bytes, expected None; the file is corrupted"
    )


def test_hashing_a_missing_file(tmp_path):
    (tmp_path / "x").write_bytes(b"abc")
    assert files.sha256(tmp_path / "x") == hashlib.sha256(b"abc").hexdigest()
    path = tmp_path / "y"
    assert error_message(ResourceError, lambda: files.sha256(path)) == f"{path}: cannot read: No such file or directory"


def test_a_directory_is_published_atomically_and_never_overwrites_another(tmp_path, monkeypatch):
    final = tmp_path / "000400"
    temp = checkpoint(files.temporary_path(final))
    for n in range(1, 20):
        with monkeypatch.context() as patch:
            patch.setattr(files, "os", Faulty(n, errno.EIO))
            try:
                files.publish(temp, final)
                break
            except ResourceError as error:
                state = "it is complete, but a power failure could undo it" if final.exists() else "nothing was changed"
                assert str(error) == f"{final}: cannot write: Input/output error; {state}"
        if final.exists():
            files.verify(final)
            os.rename(final, temp)
    assert n == 8  # open, fsync, close; rename; open, fsync, close
    files.verify(final)
    other = checkpoint(files.temporary_path(final), 2)
    assert error_message(ResourceError, lambda: files.publish(other, final)) == (
        f"{final}: already exists; nothing was changed; remove it first"
    )
    files.remove(final)
    files.publish(other, final)
    assert files.read_json(final / "train_state.json") == {"step": 2}
    assert os.listdir(tmp_path) == ["000400"]


def test_remove(tmp_path):
    files.remove(tmp_path / "none")
    (tmp_path / "link").symlink_to(checkpoint(tmp_path / "kept"))
    files.remove(tmp_path / "link")
    files.write_bytes(tmp_path / "file", b"")
    files.remove(tmp_path / "file")
    assert os.listdir(tmp_path) == ["kept"]
    files.verify(tmp_path / "kept")


# ---- locks


def in_child(work: Callable[[], None]) -> int:
    """Run `work` in a fork that never returns into pytest; its process id."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # from 3.12 on; torch's threads are idle here
        child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(0)
    return child


def test_a_directory_lock_has_one_holder_and_names_it(tmp_path):
    with Lock(tmp_path):
        message = error_message(ResourceError, lambda: Lock(tmp_path).__enter__())
        assert re.fullmatch(
            re.escape(f"{tmp_path}: in use by another process (process {os.getpid()} since ")
            + r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\); wait for it or choose another directory",
            message,
        )
        os.truncate(tmp_path / ".lock", 0)
        assert error_message(ResourceError, lambda: Lock(tmp_path).__enter__()) == (
            f"{tmp_path}: in use by another process; wait for it or choose another directory"
        )
    with Lock(tmp_path), pytest.raises(ResourceError), Lock(tmp_path):
        pass
    with Lock(tmp_path):
        pass


def test_the_lock_of_a_dead_process_is_free_at_once(tmp_path):
    ready, go = os.pipe()

    def hold() -> None:
        with Lock(tmp_path):
            os.write(go, b"x")
            time.sleep(60)

    child = in_child(hold)
    assert os.read(ready, 1) == b"x"
    assert f"in use by another process (process {child} " in error_message(ResourceError, lambda: Lock(tmp_path).__enter__())
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with Lock(tmp_path):
        pass
    os.close(ready)
    os.close(go)


def test_directories_that_cannot_be_locked(tmp_path, monkeypatch):
    path = tmp_path / "none"
    assert error_message(ResourceError, lambda: Lock(path).__enter__()) == (
        f"{path}: cannot write: No such file or directory; nothing was changed"
    )

    def refuse(descriptor: int, how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert error_message(ResourceError, lambda: Lock(tmp_path).__enter__()) == (f"{tmp_path}: cannot lock: No locks available")


# ---- killed while saving


def save_forever(folder: Path, descriptor: int) -> None:
    """Save as training does: write a numbered checkpoint and the newest weights, remove the oldest; write a byte to
    `descriptor` each time."""
    files.remove_temporary_files(folder)
    done = [int(path.name) for path in folder.iterdir() if path.name.isdigit()]
    step = max(done, default=0)
    while True:
        step += 1
        final = folder / f"{step:06d}"
        files.publish(checkpoint(files.temporary_path(final), step), final)
        tensor_files.write_tensors(folder / "model.safetensors", _tensors(step))
        files.remove(folder / f"{step - 2:06d}")
        os.write(descriptor, b"x")


class Deadly(Faulty):
    """Kills its process before the n-th call."""

    def __getattr__(self, name: str) -> Any:
        call = super().__getattr__(name)
        if name in self.CALLS and self.count + 1 == self.fail_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return call


def test_newest_complete_checkpoint_loads_after_a_kill_before_any_call_of_a_save(tmp_path, monkeypatch):
    """Save checkpoint 2 next to 1, then remove 1, as training does; a kill before each call in turn."""
    kills = 0
    while True:
        folder = tmp_path / str(kills)
        checkpoint(folder / "000001", 1)

        def save(folder: Path = folder, fatal: int = kills + 1) -> None:
            monkeypatch.setattr(files, "os", Deadly(fatal, 0))
            files.publish(checkpoint(files.temporary_path(folder / "000002"), 2), folder / "000002")
            files.remove(folder / "000001")

        _, status = os.waitpid(in_child(save), 0)
        checkpoints = sorted(path for path in folder.iterdir() if path.name.isdigit())
        for path in checkpoints:
            files.verify(path)
        assert checkpoints
        assert files.read_json(checkpoints[-1] / "train_state.json")["step"] == int(checkpoints[-1].name)
        files.remove_temporary_files(folder)
        assert sorted(folder.iterdir()) == checkpoints
        if not os.WIFSIGNALED(status):
            break
        kills += 1
    assert kills > 60
    assert [path.name for path in checkpoints] == ["000002"]


def test_files_are_complete_after_a_kill_at_any_moment(tmp_path):
    chance = random.Random(1)
    newest = 0
    heard, told = os.pipe()
    for _ in range(20):
        child = in_child(lambda: save_forever(tmp_path, told))
        os.read(heard, 1)  # wait for one save, then kill at a random moment of the next few
        time.sleep(chance.uniform(0, 0.02))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.set_blocking(heard, False)
        with suppress(BlockingIOError):
            os.read(heard, 10_000)
        os.set_blocking(heard, True)
        checkpoints = sorted(path for path in tmp_path.iterdir() if path.name.isdigit())
        for folder in checkpoints:
            files.verify(folder)
            assert tensor_files.read_tensors(folder / "model.safetensors")[0]["a"].eq(int(folder.name)).all()
        assert int(checkpoints[-1].name) > newest
        newest = int(checkpoints[-1].name)
        assert tensor_files.read_tensors(tmp_path / "model.safetensors")[0]["a"][0, 0].item() in (newest, newest - 1)
    assert newest >= 20
    os.close(heard)
    os.close(told)
    files.remove_temporary_files(tmp_path)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
