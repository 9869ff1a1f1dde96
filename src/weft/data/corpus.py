"""Tokenized text on disk, memory-mapped: written as a stream and never in memory as a whole.

A corpus `name` is a set of little-endian files in a directory:

    name.tokens  uint16 or uint32 (N,)  line after line; </s> after each line if lines are separate sequences
    name.starts  int64 (lines + 1,)     start of each line, and N; only if lines are separate sequences
    name.marks   int64 (M, 4)           tokens, characters, bytes, words up to each line end (or split of a long line)
    name.json    provenance, and a checksum of each array; written last, so a corpus without it is incomplete
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from weft import files
from weft.data.source import Readable
from weft.data.unit_counts import UNITS, count_units
from weft.errors import DataError, ModelError
from weft.text.reading import CHUNK_CHARS
from weft.text.tokenizers import Tokenizer

VERSION = 3
CHUNK_BYTES = 1 << 20  # read at once for a checksum
ProgressCallback = Callable[[int, int], None]
Write = Callable[[bytes], None]


@dataclass(frozen=True)
class Corpus:
    """The tokens (N,) of a text, and `starts` (lines + 1,) if its lines are separate sequences."""

    name: str
    tokens: np.ndarray
    starts: np.ndarray | None
    marks: np.ndarray  # (M, 4), see above
    tokenizer: str  # hash of the tokenizer
    bos_id: int = Tokenizer.bos_id  # precedes a line
    bos_ids: tuple[int, ...] = (Tokenizer.bos_id,)  # precede running text, at least one token
    provenance: str = ""  # checksum of the provenance

    @property
    def lines(self) -> int:
        """Number of lines; 0 in running text."""
        return 0 if self.starts is None else len(self.starts) - 1

    def line_starts(self) -> np.ndarray:
        """int64 (lines + 1,): the start of each line, and the end; an error in running text."""
        if self.starts is None:
            raise DataError("data.read_as", f"{self.name} is running text and has no lines", 'set data.read_as = "lines"')
        return self.starts

    def line_edges(self) -> np.ndarray:
        """int64 (M,): the token offset of every line start and of the end, also in running text."""
        return np.asarray(self.marks[:, 0])

    def units(self, edges: np.ndarray) -> dict[str, np.ndarray]:
        """Characters, bytes and words between successive token edges (E,): float64 (E - 1,) each.

        Exact at line edges; inside a line, in proportion to its tokens.
        """
        edges = np.asarray(edges, dtype=np.int64)
        tokens = self.line_edges()
        after = np.clip(np.searchsorted(tokens, edges, side="right"), 1, len(tokens) - 1)
        low, high = np.asarray(self.marks[after - 1]), np.asarray(self.marks[after])
        fraction = (edges - low[:, 0]) / (high[:, 0] - low[:, 0])
        totals = low[:, 1:] + fraction[:, None] * (high[:, 1:] - low[:, 1:])
        return {unit: np.diff(totals[:, column]) for column, unit in enumerate(UNITS)}


class _ChecksumWriter:
    """Writes data and computes its CRC-32, which detects accidental damage in a tenth of the time of a hash."""

    def __init__(self, write: Write) -> None:
        self.write, self.checksum = write, 0

    def __call__(self, data: bytes) -> None:
        self.checksum = zlib.crc32(data, self.checksum)
        self.write(data)


class _Writer:
    """Writes the arrays of a corpus batch by batch."""

    def __init__(self, outputs: dict[str, Write], dtype: str) -> None:
        self.outputs, self.dtype = outputs, dtype
        # running totals: tokens, characters, bytes, words
        self.totals = np.zeros((1, 1 + len(UNITS)), dtype=np.int64)

    def add(self, ids: np.ndarray, lengths: np.ndarray, units: np.ndarray) -> None:
        self.outputs["tokens"](ids.astype(self.dtype).tobytes())
        rows = np.concatenate([self.totals, self.totals + np.cumsum(np.column_stack([lengths, units]), axis=0)])
        if "starts" in self.outputs:
            self.outputs["starts"](rows[:-1, 0].astype("<i8").tobytes())
        # of several marks at one token only the last is correct: write a row when the next one has more tokens
        complete = np.flatnonzero(np.diff(rows[:, 0]) > 0)
        self.outputs["marks"](rows[complete].astype("<i8").tobytes())
        self.totals = rows[-1:]

    def finish(self) -> dict[str, int]:
        if "starts" in self.outputs:
            self.outputs["starts"](self.totals[:, 0].astype("<i8").tobytes())
        self.outputs["marks"](self.totals.astype("<i8").tobytes())
        return dict(zip(("tokens", *UNITS), self.totals[0].tolist(), strict=True))


def lines_of(tokenizer: Tokenizer, lines: Sequence[str]) -> Corpus:
    """A corpus of lines in memory, without unit counts."""
    ids, lengths = tokenizer.encode_concatenated(lines)
    starts = np.concatenate([[0], np.cumsum(lengths + 1)])
    tokens = np.full(int(starts[-1]), tokenizer.eos_id, np.int64)
    tokens[np.delete(np.arange(len(tokens)), starts[1:] - 1)] = ids
    return Corpus("lines", tokens, starts, np.zeros((1, 1 + len(UNITS)), np.int64), tokenizer.hash)


def _batches(source: Readable, tokenizer: Tokenizer) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Token IDs, token counts per line and unit counts per line, in batches of lines."""
    for lines in source.batches():
        if not source.lines:
            ids, lengths = tokenizer.encode_pieces(lines)
            yield ids, lengths, count_units(lines)
            continue
        # a table field may contain newlines
        is_plain = max(map(len, lines)) <= CHUNK_CHARS and not any("\n" in line for line in lines)
        ids, lengths = tokenizer.encode_pieces(lines) if is_plain else tokenizer.encode_concatenated(lines)
        ids = np.insert(ids, np.cumsum(lengths), tokenizer.eos_id)
        yield ids, lengths + 1, count_units([line + "\n" for line in lines])


def _write_arrays(source: Readable, tokenizer: Tokenizer, base: Path, progress: ProgressCallback | None) -> dict[str, Any]:
    """Write the arrays next to `base` and return their description."""
    dtype = "<u2" if tokenizer.vocab_size <= 1 << 16 else "<u4"
    total, done = max(1, source.size()) if progress else 1, 0
    with ExitStack() as stack:
        names = ["tokens", "marks", *(["starts"] if source.lines else [])]
        outputs = {name: _ChecksumWriter(stack.enter_context(files.atomic_write(_part(base, name)))) for name in names}
        writer = _Writer({name: output for name, output in outputs.items()}, dtype)
        for ids, lengths, units in _batches(source, tokenizer):
            writer.add(ids, lengths, units)
            done += int(units[:, UNITS.index("bytes")].sum())
            if progress:
                progress(min(done, total), total)
        counts = writer.finish()
        if not counts["tokens"]:
            raise DataError(source.name, "no tokens; the file has no text")
    if progress:
        progress(total, total)
    return {"dtype": dtype, **counts, "sums": {name: output.checksum for name, output in outputs.items()}}


def _part(base: Path, name: str) -> Path:
    return base.with_name(f"{base.name}.{name}")


def _stored_provenance(description: Path) -> dict[str, Any]:
    """The provenance of a finished corpus; {} if its description is damaged."""
    try:
        provenance = files.read_json(description)["origin"]
    except (ModelError, KeyError, TypeError):
        return {}
    return provenance if isinstance(provenance, dict) else {}


def provenance_sum(provenance: dict[str, Any]) -> str:
    """The SHA-256 of a provenance, independent of the order of its entries."""
    return hashlib.sha256(json.dumps(provenance, sort_keys=True, default=str).encode(errors="surrogatepass")).hexdigest()


def _difference(old: dict[str, Any], new: dict[str, Any], source: Readable) -> str:
    """Describe the first difference between two provenances."""
    for key in new:
        if key != "files" and old.get(key) != new[key]:
            return f"{key} was {old.get(key)!r}, now {new[key]!r}"
    before = old.get("files", [])
    changed = [path for path, was, now in zip(source.paths, before, new["files"], strict=False) if was != now]
    return f"{changed[0]} has changed" if changed else f"there were {len(before)} files, now {len(new['files'])}"


def write_corpus(
    source: Readable,
    tokenizer: Tokenizer,
    directory: Path,
    name: str,
    *,
    must_match: str | None = None,
    progress: ProgressCallback | None = None,
    on_note: Callable[[str], None] | None = None,
) -> Corpus:
    """The corpus `name` in `directory`: opened if it has the same provenance, otherwise written.

    A resumed run passes the provenance checksum it started with as `must_match`: another text is then an error, and only a
    damaged corpus is rewritten, which is reported to `on_note`. `progress` gets bytes done and bytes in total.
    """
    base, provenance = directory / name, {"version": VERSION, "tokenizer": tokenizer.hash, **source.provenance()}
    description = _part(base, "json")
    stored, checksum = _stored_provenance(description), provenance_sum(provenance)
    if must_match is not None and must_match != checksum:
        if provenance_sum(stored) != must_match:
            problem = f"corrupted, and {source.name} is not the text that the run was started with"
            raise ModelError(description, problem, "restore both or start a new run")
        problem = f"not the text that the run was started with ({_difference(stored, provenance, source)})"
        raise DataError(source.name, problem, "restore it or start a new run")
    if stored == provenance:
        with suppress(ModelError):  # damaged or missing, but from the same text: rewrite it
            return open_corpus(directory, name)
    if must_match is not None and on_note is not None:
        on_note(f"{description}: the tokenized text is corrupted; it is written again from the same text")
    # before the arrays: an interruption must not leave an old description of new arrays
    files.remove(description)
    directory.mkdir(parents=True, exist_ok=True)
    files.write_json(description, {**_write_arrays(source, tokenizer, base, progress), "origin": provenance})
    return open_corpus(directory, name, check=False)


def open_corpus(directory: Path, name: str, *, check: bool = True) -> Corpus:
    """The finished corpus `name` in `directory`, memory-mapped. `check` reads it once to verify its checksums."""
    base = directory / name
    description = _part(base, "json")
    about = files.read_json(description)
    try:
        dtype, count, origin, checksums = str(about["dtype"]), int(about["tokens"]), about["origin"], dict(about["sums"])
        lines, version, tokenizer = bool(origin["lines"]), origin["version"], str(origin["tokenizer"])
    except (KeyError, TypeError, ValueError):
        raise ModelError(description, "not the description of a corpus", "delete it to have the corpus written again") from None
    if version != VERSION or dtype not in ("<u2", "<u4"):
        raise ModelError(description, "written by another version of weft", "delete it to have the corpus written again")
    tokens = _mapped(base, "tokens", np.dtype(dtype))
    marks = _mapped(base, "marks", np.dtype(("<i8", (1 + len(UNITS),))))
    starts = _mapped(base, "starts", np.dtype("<i8")) if lines else None
    ends = {"tokens": len(tokens), "marks": marks[-1, 0], "starts": count if starts is None else starts[-1]}
    for part, end in ends.items():
        if end != count:
            problem = f"corrupted: expected {count} tokens, got {end}"
            raise ModelError(_part(base, part), problem, f"delete {description} to have it written again")
    for part in ends if check else ():
        if (part != "starts" or lines) and _checksum(_part(base, part)) != checksums.get(part):
            raise ModelError(_part(base, part), "checksum mismatch", f"delete {description} to have it written again")
    return Corpus(name, tokens, starts, marks, tokenizer, provenance=provenance_sum(origin))


def _checksum(path: Path) -> int:
    checksum = 0
    with path.open("rb") as file:  # read instead of mapped: mapped pages would count as memory in use
        while part := file.read(CHUNK_BYTES):
            checksum = zlib.crc32(part, checksum)
    return checksum


def _mapped(base: Path, name: str, dtype: np.dtype[Any]) -> np.ndarray:
    path, fix = _part(base, name), f"delete {_part(base, 'json')} to have it written again"
    files.refuse_device(path)
    try:
        # as a plain array: slicing a memmap creates a new memmap object, which is slow
        return np.asarray(np.memmap(path, dtype=dtype, mode="r"))
    except FileNotFoundError:
        raise ModelError(path, "file not found", fix) from None
    except (OSError, ValueError) as error:
        raise ModelError(path, f"corrupted: {error}", fix) from None
