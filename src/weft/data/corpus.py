"""Tokenized text on disk: written as a stream and read memory-mapped, so that it is never in memory as a whole.

A corpus `name` is a set of little-endian files in a directory:

    name.tokens  uint16 or uint32 (N,)  token IDs, line after line; </s> after each line if lines are separate sequences
    name.starts  int64 (lines + 1,)     start of each line, and N; only if lines are separate sequences
    name.counts  int64 (M, 4)           cumulative tokens, characters, bytes and words at each line end or split of a long line
    name.json    provenance, and a checksum of each array; written last, so a corpus without it is incomplete
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from weft import files
from weft.data.array_files import ChecksumWriter, Write, array_path, checksum, has_provenance, memory_map, provenance_hash
from weft.data.sharded_array import Array
from weft.data.source import Readable
from weft.data.unit_counts import UNITS, count_units
from weft.errors import DataError, ModelError
from weft.text.reading import CHUNK_CHARS
from weft.text.start_tokens import DEFAULT_START, StartTokens
from weft.text.tokenizers import Tokenizer

VERSION = 4
ProgressCallback = Callable[[int, int], None]  # bytes done, bytes in total


@dataclass(frozen=True)
class Corpus:
    """The tokens (N,) of a text, and `starts` (lines + 1,) if its lines are separate sequences."""

    name: str
    tokens: Array
    starts: Array | None
    cumulative_counts: Array  # int64 (M, 4): tokens, characters, bytes, words
    tokenizer: str  # hash of the tokenizer
    bos_id: int = Tokenizer.bos_id  # precedes a line
    bos_ids: tuple[int, ...] = (Tokenizer.bos_id,)  # precede running text, at least one token
    provenance: str = ""  # SHA-256 of the provenance
    start_tokens: StartTokens = DEFAULT_START  # precede a line that is a source or a target

    @property
    def lines(self) -> int:
        """Number of lines; 0 in running text."""
        return 0 if self.starts is None else len(self.starts) - 1

    def line_starts(self) -> Array:
        """int64 (lines + 1,): start of each line, and the end. Running text is an error."""
        if self.starts is None:
            raise DataError("data.read_as", f"{self.name} is running text and has no lines", 'set data.read_as = "lines"')
        return self.starts

    def in_memory(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Tokens and starts as NumPy arrays. Those of a corpus in one file stay memory-mapped, shards are read."""
        return np.asarray(self.tokens), None if self.starts is None else np.asarray(self.starts)

    def line_edges(self) -> np.ndarray:
        """int64 (M,): token offset of every line start and of the end, also in running text."""
        return np.asarray(self.cumulative_counts[:, 0])

    def units(self, edges: np.ndarray) -> dict[str, np.ndarray]:
        """Characters, bytes and words between successive token offsets `edges` (E,): float64 (E - 1,) each.

        Exact at line edges; interpolated linearly inside a line.
        """
        edges = np.asarray(edges, dtype=np.int64)
        tokens = self.line_edges()
        after = np.clip(np.searchsorted(tokens, edges, side="right"), 1, len(tokens) - 1)
        low, high = (np.asarray(self.cumulative_counts[rows]) for rows in (after - 1, after))
        fraction = (edges - low[:, 0]) / (high[:, 0] - low[:, 0])
        totals = low[:, 1:] + fraction[:, None] * (high[:, 1:] - low[:, 1:])
        return {unit: np.diff(totals[:, column]) for column, unit in enumerate(UNITS)}


class _Writer:
    """Writes the arrays of a corpus batch by batch."""

    def __init__(self, outputs: dict[str, Write], dtype: str) -> None:
        self.outputs, self.dtype = outputs, dtype
        # (1, 4): tokens, characters, bytes, words
        self.totals = np.zeros((1, 1 + len(UNITS)), dtype=np.int64)

    def add(self, ids: np.ndarray, lengths: np.ndarray, units: np.ndarray) -> None:
        self.outputs["tokens"](ids.astype(self.dtype).tobytes())
        rows = np.concatenate([self.totals, self.totals + np.cumsum(np.column_stack([lengths, units]), axis=0)])
        if "starts" in self.outputs:
            self.outputs["starts"](rows[:-1, 0].astype("<i8").tobytes())
        # of several rows with equal tokens only the last is correct: write a row when the next one has more tokens
        complete = np.flatnonzero(np.diff(rows[:, 0]) > 0)
        self.outputs["counts"](rows[complete].astype("<i8").tobytes())
        self.totals = rows[-1:]

    def finish(self) -> dict[str, int]:
        """Write the last row of each array and return the total counts."""
        if "starts" in self.outputs:
            self.outputs["starts"](self.totals[:, 0].astype("<i8").tobytes())
        self.outputs["counts"](self.totals.astype("<i8").tobytes())
        return dict(zip(("tokens", *UNITS), self.totals[0].tolist(), strict=True))


def corpus_from_lines(tokenizer: Tokenizer, lines: Sequence[str]) -> Corpus:
    """An in-memory corpus of lines, without counts of characters, bytes and words."""
    ids, lengths = tokenizer.encode_concatenated(lines)
    starts = np.concatenate([[0], np.cumsum(lengths + 1)])
    tokens = np.full(int(starts[-1]), tokenizer.eos_id, np.int64)
    tokens[np.delete(np.arange(len(tokens)), starts[1:] - 1)] = ids
    counts = np.zeros((1, 1 + len(UNITS)), np.int64)
    return Corpus("lines", tokens, starts, counts, tokenizer.hash, start_tokens=tokenizer.start_tokens)


def _encode(
    batches: Iterable[list[str]], tokenizer: Tokenizer, *, is_running_text: bool
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Token IDs, and counts of tokens and units (see UNITS) per line, in batches of lines."""
    for lines in batches:
        if is_running_text:
            ids, lengths = tokenizer.encode_lines(lines)
            yield ids, lengths, count_units(lines)
            continue
        # a table field may contain newlines
        is_plain = max(map(len, lines)) <= CHUNK_CHARS and not any("\n" in line for line in lines)
        ids, lengths = tokenizer.encode_lines(lines) if is_plain else tokenizer.encode_concatenated(lines)
        ids = np.insert(ids, np.cumsum(lengths), tokenizer.eos_id)
        yield ids, lengths + 1, count_units([line + "\n" for line in lines])


def write_arrays(
    batches: Iterable[list[str]],
    tokenizer: Tokenizer,
    base: Path,
    *,
    is_running_text: bool,
    report: Callable[[int], None] | None = None,
    error_if_empty: DataError | None = None,
) -> dict[str, Any]:
    """Tokenize batches of lines, write the arrays of a corpus, and return their description. `report` gets the bytes of text
    so far. A text without tokens raises `error_if_empty`, and nothing is written."""
    dtype = "<u2" if tokenizer.vocab_size <= 1 << 16 else "<u4"
    done = 0
    with ExitStack() as stack:
        names = ["tokens", "counts", *([] if is_running_text else ["starts"])]
        outputs = {name: ChecksumWriter(stack.enter_context(files.atomic_write(array_path(base, name)))) for name in names}
        writer = _Writer({name: output for name, output in outputs.items()}, dtype)
        for ids, lengths, units in _encode(batches, tokenizer, is_running_text=is_running_text):
            writer.add(ids, lengths, units)
            done += int(units[:, UNITS.index("bytes")].sum())
            if report is not None:
                report(done)
        counts = writer.finish()
        if not counts["tokens"] and error_if_empty is not None:
            raise error_if_empty
    return {"dtype": dtype, **counts, "checksums": {name: output.checksum for name, output in outputs.items()}}


def _describe_source(source: Readable, tokenizer: Tokenizer, base: Path, progress: ProgressCallback | None) -> dict[str, Any]:
    """Write the arrays of the corpus of a source and return their description."""
    total = max(1, source.size()) if progress else 1

    def report(done: int) -> None:
        if progress is not None:
            progress(min(done, total), total)

    content = write_arrays(
        source.batches(),
        tokenizer,
        base,
        is_running_text=not source.lines,
        report=report,
        error_if_empty=no_tokens(source),
    )
    report(total)
    return content


def no_tokens(source: Readable) -> DataError:
    return DataError(source.name, "no tokens; the file has no text")


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
    """Open the corpus `name` in `directory` if it has the provenance of `source`, otherwise write it.

    A resumed run passes the provenance hash of its corpus as `must_match`: another text is then an error, and only a corrupted
    corpus is rewritten, which is reported to `on_note`.
    """
    base, provenance = directory / name, {"version": VERSION, "tokenizer": tokenizer.hash, **source.provenance()}
    description = array_path(base, "json")
    if has_provenance(description, provenance, source, must_match=must_match):
        with suppress(ModelError):  # corrupted or missing, but from the same text: rewrite it
            return replace(open_corpus(directory, name), start_tokens=tokenizer.start_tokens)
    if must_match is not None and on_note is not None:
        on_note(f"{description}: the tokenized text is corrupted; it is written again from the same text")
    # removed first: an interruption must not leave an old description of new arrays
    files.remove(description)
    directory.mkdir(parents=True, exist_ok=True)
    files.write_json(description, {**_describe_source(source, tokenizer, base, progress), "provenance": provenance})
    return replace(open_corpus(directory, name, check=False), start_tokens=tokenizer.start_tokens)


def open_corpus(directory: Path, name: str, *, check: bool = True) -> Corpus:
    """The finished corpus `name` in `directory`, memory-mapped. `check` reads it once to verify its checksums."""
    base = directory / name
    description = array_path(base, "json")
    content = files.read_json(description)
    try:
        dtype, count, checksums = str(content["dtype"]), int(content["tokens"]), dict(content["checksums"])
        provenance = content["provenance"]
        has_lines, version, tokenizer = bool(provenance["lines"]), provenance["version"], str(provenance["tokenizer"])
    except (KeyError, TypeError, ValueError):
        raise ModelError(description, "not the description of a corpus", "delete it to have the corpus written again") from None
    if version != VERSION or dtype not in ("<u2", "<u4"):
        raise ModelError(description, "written by another version of weft", "delete it to have the corpus written again")
    tokens = memory_map(base, "tokens", np.dtype(dtype))
    counts = memory_map(base, "counts", np.dtype(("<i8", (1 + len(UNITS),))))
    starts = memory_map(base, "starts", np.dtype("<i8")) if has_lines else None
    ends = {"tokens": len(tokens), "counts": counts[-1, 0]} | ({} if starts is None else {"starts": starts[-1]})
    for array, end in ends.items():
        if end != count:
            problem = f"corrupted: expected {count} tokens, got {end}"
            raise ModelError(array_path(base, array), problem, f"delete {description} to have it written again")
    for array in ends if check else ():
        if checksum(array_path(base, array)) != checksums.get(array):
            raise ModelError(array_path(base, array), "checksum mismatch", f"delete {description} to have it written again")
    return Corpus(name, tokens, starts, counts, tokenizer, provenance=provenance_hash(provenance))
