"""Corpora in shards: a text is divided at lines into parts of about equal size, each of which is tokenized on its own.

A directory per corpus has the arrays of `weft.data.corpus` for each shard: 00000.tokens, 00000.counts, 00000.starts, and
00000.json, which is written last. `end.json` has the number of shards. Which line is in which shard depends on the text and the
size of shards alone, so any number of processes writes the same files. Together, the shards are the arrays of one corpus.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from weft import files
from weft.data.array_files import array_path, checksum, provenance_hash
from weft.data.corpus import Corpus, no_tokens, write_arrays
from weft.data.sharded_array import ArrayPart, ShardedArray
from weft.data.source import Readable
from weft.data.unit_counts import UNITS
from weft.errors import ModelError
from weft.text.tokenizers import Tokenizer

COUNT_COLUMNS = ("tokens", *UNITS)
END = "end.json"
AGAIN = "run weft prepare --verify to write it again"


class Subset(NamedTuple):
    """The shards that a process writes: every `step`-th one, from `first`."""

    first: int = 0
    step: int = 1

    def has(self, shard: int) -> bool:
        return shard % self.step == self.first


ALL = Subset()


def shard_path(directory: Path, number: int) -> Path:
    """The path of a shard without the suffix of an array."""
    return directory / f"{number:05d}"


def split_lines(batches: Iterable[list[str]], shard_chars: int) -> Iterator[tuple[int, list[str]]]:
    """Batches of lines with the number of their shard. A shard ends with the line that gives it `shard_chars` characters."""
    number, size = 0, 0
    for lines in batches:
        ends = np.cumsum(np.fromiter(map(len, lines), np.int64, len(lines)))
        start = before = 0
        while start < len(lines):
            if size >= shard_chars:
                number, size = number + 1, 0
            stop = min(len(lines), int(np.searchsorted(ends, before + shard_chars - size, side="left")) + 1)
            yield number, lines[start:stop]
            size += int(ends[stop - 1]) - before
            start, before = stop, int(ends[stop - 1])


def state_of(path: Path) -> list[int]:
    """Size, modification time and inode: a file that has the state it was written or verified with is not read again."""
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns, stat.st_ino]


def _read_finished(base: Path, provenance: str) -> dict[str, Any] | None:
    """The description of a shard that was written from this text; None if there is none, or if its files are incomplete."""
    try:
        content: dict[str, Any] = files.read_json(array_path(base, "json"))
        sizes = {name: state[0] for name, state in content["states"].items()}
        is_same = content["provenance"] == provenance and sizes.keys() == dict(content["checksums"]).keys()
    except (ModelError, KeyError, TypeError, AttributeError, IndexError):
        return None
    paths = {name: array_path(base, name) for name in sizes}
    is_complete = all(path.is_file() and path.stat().st_size == sizes[name] for name, path in paths.items())
    return content if is_same and is_complete else None


def _remove_unfinished(base: Path) -> None:
    """Remove what a killed process left of a shard."""
    files.remove(array_path(base, "json"))
    for path in files.temporary_files(base.parent):
        if path.name.startswith(f".{base.name}."):
            files.remove(path)


class ShardWriter(NamedTuple):
    """Writes shards of a corpus."""

    source: Readable
    tokenizer: Tokenizer
    directory: Path
    provenance: str  # SHA-256 of what the tokens depend on
    shard_chars: int

    def write(self, subset: Subset = ALL, report: Callable[[int], None] | None = None) -> None:
        """Write the shards of `subset` that are not finished. `report` gets the characters that were read."""
        if self.has_all(subset):
            return
        self.directory.mkdir(parents=True, exist_ok=True)
        done, count = 0, 0

        def read(group: Iterable[tuple[int, list[str]]]) -> Iterator[list[str]]:
            nonlocal done
            for _, lines in group:
                yield lines
                done += sum(map(len, lines))
                if report is not None:
                    report(done)

        for number, group in groupby(split_lines(self.source.batches(), self.shard_chars), key=itemgetter(0)):
            batches, count = read(group), number + 1
            if subset.has(number) and not self.is_finished(number):
                self._write_shard(shard_path(self.directory, number), batches)
            for _ in batches:  # of another process, or finished
                pass
        if not count:
            raise no_tokens(self.source)
        files.write_json(self.directory / END, {"provenance": self.provenance, "shards": count})

    def _write_shard(self, base: Path, batches: Iterator[list[str]]) -> None:
        _remove_unfinished(base)
        content = write_arrays(batches, self.tokenizer, base, is_running_text=not self.source.lines)
        states = {name: state_of(array_path(base, name)) for name in content["checksums"]}
        files.write_json(array_path(base, "json"), {**content, "states": states, "provenance": self.provenance})

    def is_finished(self, number: int) -> bool:
        return _read_finished(shard_path(self.directory, number), self.provenance) is not None

    def has_all(self, subset: Subset) -> bool:
        """Whether all shards of `subset` are finished."""
        missing = self.missing()
        return missing is not None and not any(map(subset.has, missing))

    def remove_damaged(self, subset: Subset = ALL) -> list[Path]:
        """Read all shards of `subset`, and remove those whose checksums are wrong. Returns the wrong files."""
        damaged = list[Path]()
        for number in range(self.num_shards() or 0):
            base = shard_path(self.directory, number)
            content = _read_finished(base, self.provenance) if subset.has(number) else None
            expected = {} if content is None else content["checksums"]
            wrong = [array_path(base, name) for name in expected if checksum(array_path(base, name)) != expected[name]]
            if wrong:
                _remove_unfinished(base)
            damaged += wrong
        return damaged

    def num_shards(self) -> int | None:
        """The number of shards; None if no process has read all of the text yet."""
        try:
            content = files.read_json(self.directory / END)
            return int(content["shards"]) if content["provenance"] == self.provenance else None
        except (ModelError, KeyError, TypeError, ValueError):
            return None

    def missing(self) -> list[int] | None:
        """The shards that are not finished; None if their number is not known yet."""
        count = self.num_shards()
        if count is None:
            return None
        return [number for number in range(count) if not self.is_finished(number)]

    def describe(self) -> dict[str, Any]:
        """The entry of the finished corpus in an index."""
        bases = [shard_path(self.directory, number) for number in range(self.num_shards() or 0)]
        contents = [files.read_json(array_path(base, "json")) for base in bases]
        totals = {name: sum(content[name] for content in contents) for name in COUNT_COLUMNS}
        if not totals["tokens"]:
            raise no_tokens(self.source)
        shards = [
            {
                **{name: content[name] for name in (*COUNT_COLUMNS, "checksums")},
                "sizes": {name: state[0] for name, state in content["states"].items()},
            }
            for content in contents
        ]
        return {"dtype": contents[0]["dtype"], **totals, "shards": shards}

    def states(self) -> dict[str, list[int]]:
        """The states in which the files of the finished corpus were written, by path relative to the parent directory."""
        bases = [shard_path(self.directory, number) for number in range(self.num_shards() or 0)]
        return {
            f"{self.directory.name}/{array_path(base, name).name}": state
            for base in bases
            for name, state in files.read_json(array_path(base, "json"))["states"].items()
        }


class FileCheck(NamedTuple):
    """A file whose checksum was not verified in its current state."""

    path: Path
    checksum: int


def _num_rows(dtype: np.dtype[Any], shard: Mapping[str, Any]) -> dict[str, int]:
    """Number of rows of each array of a shard, from the recorded sizes."""
    row_bytes = {"tokens": dtype.itemsize, "starts": 8, "counts": 8 * len(COUNT_COLUMNS)}
    return {name: int(size) // row_bytes[name] for name, size in shard["sizes"].items()}


def unverified(directory: Path, content: Mapping[str, Any], verified: Mapping[str, Any]) -> list[FileCheck]:
    """The files of a corpus whose checksums were verified neither when they were written nor since. Missing files and files of
    another size are errors. `verified` has states by path relative to the parent of `directory`."""
    checks = list[FileCheck]()
    for number, shard in enumerate(content["shards"]):
        for name, size in shard["sizes"].items():
            path = array_path(shard_path(directory, number), name)
            if not path.is_file():
                raise ModelError(path, "file not found", AGAIN)
            state = state_of(path)
            if state[0] != size:
                raise ModelError(path, f"corrupted: {state[0]:,} bytes, expected {size:,}", AGAIN)
            if state != verified.get(f"{directory.name}/{path.name}"):
                checks.append(FileCheck(path, int(shard["checksums"][name])))
    return checks


def open_shards(
    directory: Path, name: str, content: Mapping[str, Any], provenance: Mapping[str, Any], before_read: Callable[[], None]
) -> Corpus:
    """A corpus in shards as one corpus. `before_read` is called before each read, and may raise an error."""
    dtype, shards = np.dtype(content["dtype"]), content["shards"]
    tokens, starts, counts = list[ArrayPart](), list[ArrayPart](), list[ArrayPart]()
    totals = np.zeros(len(COUNT_COLUMNS), np.int64)
    for number, shard in enumerate(shards):
        base, sizes, is_last = shard_path(directory, number), _num_rows(dtype, shard), number == len(shards) - 1
        tokens.append(ArrayPart(array_path(base, "tokens"), sizes["tokens"]))
        # the last row of a shard is the first one of the next
        counts.append(ArrayPart(array_path(base, "counts"), sizes["counts"] - (not is_last), totals.copy()))
        if "starts" in sizes:
            starts.append(ArrayPart(array_path(base, "starts"), sizes["starts"] - (not is_last), int(totals[0])))
        totals += [shard[column] for column in COUNT_COLUMNS]
    return Corpus(
        name,
        _array(tokens, dtype.str, (), before_read),
        _array(starts, "<i8", (), before_read) if starts else None,
        _array(counts, "<i8", (len(COUNT_COLUMNS),), before_read),
        str(provenance["tokenizer"]),
        provenance=provenance_hash(dict(provenance)),
    )


def _array(parts: Sequence[ArrayPart], dtype: str, row_shape: tuple[int, ...], before_read: Callable[[], None]) -> ShardedArray:
    return ShardedArray([part for part in parts if part.length], dtype, row_shape, before_read)
