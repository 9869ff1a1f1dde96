"""Text as tokens on disk, memory-mapped: made in a stream, opened at once, never held in memory as a whole.

A corpus `name` is a few files in a folder, little endian:

    name.tokens  uint16 or uint32 (N,)  line after line; where lines are units, each is followed by </s>
    name.starts  int64 (lines + 1,)     where each line starts, and N; only where lines are units
    name.marks   int64 (M, 4)           tokens, characters, bytes, words up to each line end (or cut in a long line)
    name.json    what it was made from and how, and a sum of each array; written last, so what lacks it is unfinished
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
CHUNK = 1 << 20  # bytes summed at once
ProgressCallback = Callable[[int, int], None]
Write = Callable[[bytes], None]


@dataclass(frozen=True)
class Corpus:
    """The tokens (N,) of a text; `starts` (lines + 1,) where its lines are units."""

    name: str
    tokens: np.ndarray
    starts: np.ndarray | None
    marks: np.ndarray  # (M, 4), see above
    tokenizer: str  # the hash of the tokenizer that made it
    bos_id: int = Tokenizer.bos_id  # what a line comes after
    bos_ids: tuple[int, ...] = (Tokenizer.bos_id,)  # what running text comes after, at least one token
    provenance: str = ""  # a sum of all that it was made from

    @property
    def lines(self) -> int:
        """How many lines are units; 0 in running text."""
        return 0 if self.starts is None else len(self.starts) - 1

    def line_starts(self) -> np.ndarray:
        """int64 (lines + 1,): where each line starts, and the end; refused in running text."""
        if self.starts is None:
            raise DataError("data", f"{self.name} is running text and has no lines", 'set data.read_as = "lines"')
        return self.starts

    def line_edges(self) -> np.ndarray:
        """int64 (M,): the token offsets of every line's start and of the end, in running text too."""
        return np.asarray(self.marks[:, 0])

    def units(self, edges: np.ndarray) -> dict[str, np.ndarray]:
        """Characters, bytes and words between successive token edges (E,): float64 (E - 1,) each.

        Exact where the edges are those of lines; inside a line in proportion to its tokens.
        """
        at = np.asarray(edges, dtype=np.int64)
        tokens = self.line_edges()
        after = np.clip(np.searchsorted(tokens, at, side="right"), 1, len(tokens) - 1)
        low, high = np.asarray(self.marks[after - 1]), np.asarray(self.marks[after])
        fraction = (at - low[:, 0]) / (high[:, 0] - low[:, 0])
        found = low[:, 1:] + fraction[:, None] * (high[:, 1:] - low[:, 1:])
        return {unit: np.diff(found[:, column]) for column, unit in enumerate(UNITS)}


class _ChecksumWriter:
    """Writes on, and adds up what was written: a CRC-32, for damage by chance is meant, at a tenth of a hash's time."""

    def __init__(self, write: Write) -> None:
        self.write, self.sum = write, 0

    def __call__(self, data: bytes) -> None:
        self.sum = zlib.crc32(data, self.sum)
        self.write(data)


class _Writer:
    """Takes lines with their ids and keeps the running totals."""

    def __init__(self, outputs: dict[str, Write], dtype: str) -> None:
        self.outputs, self.dtype = outputs, dtype
        # tokens, characters, bytes, words so far
        self.totals = np.zeros((1, 1 + len(UNITS)), dtype=np.int64)

    def add(self, ids: np.ndarray, lengths: np.ndarray, units: np.ndarray) -> None:
        self.outputs["tokens"](ids.astype(self.dtype).tobytes())
        rows = np.concatenate([self.totals, self.totals + np.cumsum(np.column_stack([lengths, units]), axis=0)])
        if "starts" in self.outputs:
            self.outputs["starts"](rows[:-1, 0].astype("<i8").tobytes())
        # of several marks at one token only the last is true: a row waits until the next one has more tokens
        kept = np.flatnonzero(np.diff(rows[:, 0]) > 0)
        self.outputs["marks"](rows[kept].astype("<i8").tobytes())
        self.totals = rows[-1:]

    def finish(self) -> dict[str, int]:
        if "starts" in self.outputs:
            self.outputs["starts"](self.totals[:, 0].astype("<i8").tobytes())
        self.outputs["marks"](self.totals.astype("<i8").tobytes())
        return dict(zip(("tokens", *UNITS), self.totals[0].tolist(), strict=True))


def lines_of(tokenizer: Tokenizer, lines: Sequence[str]) -> Corpus:
    """Lines as a corpus in memory; of its units nothing is known."""
    ids, lengths = tokenizer.encode_concatenated(lines)
    starts = np.concatenate([[0], np.cumsum(lengths + 1)])
    tokens = np.full(int(starts[-1]), tokenizer.eos_id, np.int64)
    tokens[np.delete(np.arange(len(tokens)), starts[1:] - 1)] = ids
    return Corpus("lines", tokens, starts, np.zeros((1, 1 + len(UNITS)), np.int64), tokenizer.hash)


def _batches(source: Readable, tokenizer: Tokenizer) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Ids, how many each line has, and each line's units, for many lines at a time."""
    for lines in source.batches():
        if not source.lines:
            ids, lengths = tokenizer.encode_pieces(lines)
            yield ids, lengths, count_units(lines)
            continue
        # a field of a table may have newlines inside
        plain = max(map(len, lines)) <= CHUNK_CHARS and not any("\n" in line for line in lines)
        ids, lengths = tokenizer.encode_pieces(lines) if plain else tokenizer.encode_concatenated(lines)
        ids = np.insert(ids, np.cumsum(lengths), tokenizer.eos_id)
        yield ids, lengths + 1, count_units([line + "\n" for line in lines])


def _make(source: Readable, tokenizer: Tokenizer, base: Path, progress: ProgressCallback | None) -> dict[str, Any]:
    """Write the arrays beside `base`; what their description will say of them."""
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
            raise DataError(source.name, "gives no token", "is there any text in it?")
    if progress:
        progress(total, total)
    return {"dtype": dtype, **counts, "sums": {name: output.sum for name, output in outputs.items()}}


def _part(base: Path, name: str) -> Path:
    return base.with_name(f"{base.name}.{name}")


def _built_from(description: Path) -> dict[str, Any]:
    """The origin of a finished corpus; nothing where its description is damaged."""
    try:
        found = files.read_json(description)["origin"]
    except (ModelError, KeyError, TypeError):
        return {}
    return found if isinstance(found, dict) else {}


def provenance_sum(origin: dict[str, Any]) -> str:
    """The SHA-256 of an origin, however its entries are ordered."""
    return hashlib.sha256(json.dumps(origin, sort_keys=True, default=str).encode(errors="surrogatepass")).hexdigest()


def _difference(old: dict[str, Any], new: dict[str, Any], source: Readable) -> str:
    """In words, what a corpus was made from that is not there any more."""
    for key in new:
        if key != "files" and old.get(key) != new[key]:
            return f"{key} was {old.get(key)!r} and is {new[key]!r}"
    before = old.get("files", [])
    changed = [path for path, was, now in zip(source.paths, before, new["files"], strict=False) if was != now]
    return f"{changed[0]} has changed" if changed else f"{len(before)} files became {len(new['files'])}"


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
    """The corpus `name` in `folder`: opened if it was made from just this, else made anew.

    A run that goes on knows the `origin` that it began with, which `must_match`: another text is refused, and only what is
    damaged is made anew, of which somebody is `told`. `watch(bytes done, bytes in all)` is told of progress.
    """
    base, origin = directory / name, {"version": VERSION, "tokenizer": tokenizer.hash, **source.provenance()}
    description = _part(base, "json")
    made_from, now = _built_from(description), provenance_sum(origin)
    if must_match is not None and must_match != now:
        if provenance_sum(made_from) != must_match:
            raise ModelError(
                description, f"is damaged, and {source.name} is not what the run began with", "put both back, or start anew"
            )
        what = _difference(made_from, origin, source)
        raise DataError(source.name, f"is not what {description} was made from: {what}", "put it back, or start a new run")
    if made_from == origin:
        with suppress(ModelError):  # damaged or gone, but the text is the same: made anew, nothing is lost
            return open_corpus(directory, name)
    if must_match is not None and on_note is not None:
        on_note(f"{description}: it, or what it describes, is damaged; made again from the same text")
    # first, or a stop half-way would leave an old description of new arrays
    files.remove(description)
    directory.mkdir(parents=True, exist_ok=True)
    files.write_json(description, {**_make(source, tokenizer, base, progress), "origin": origin})
    return open_corpus(directory, name, check=False)


def open_corpus(directory: Path, name: str, *, check: bool = True) -> Corpus:
    """The finished corpus `name` in `folder`, memory-mapped; `check` reads it once through, and refuses what was damaged."""
    base = directory / name
    description = _part(base, "json")
    about = files.read_json(description)
    try:
        dtype, count, origin, noted = str(about["dtype"]), int(about["tokens"]), about["origin"], dict(about["sums"])
        lines, version, tokenizer = bool(origin["lines"]), origin["version"], str(origin["tokenizer"])
    except (KeyError, TypeError, ValueError):
        raise ModelError(description, "describes no corpus", "remove it to have it made anew") from None
    if version != VERSION or dtype not in ("<u2", "<u4"):
        raise ModelError(description, "is of another version", "remove it to have it made anew")
    tokens = _mapped(base, "tokens", np.dtype(dtype))
    marks = _mapped(base, "marks", np.dtype(("<i8", (1 + len(UNITS),))))
    starts = _mapped(base, "starts", np.dtype("<i8")) if lines else None
    ends = {"tokens": len(tokens), "marks": marks[-1, 0], "starts": count if starts is None else starts[-1]}
    for part, end in ends.items():
        if end != count:
            raise ModelError(
                _part(base, part), f"holds {end} tokens, not {count}", f"remove {description} to have it made anew"
            )
    for part in ends if check else ():
        if (part != "starts" or lines) and _sum(_part(base, part)) != noted.get(part):
            raise ModelError(_part(base, part), "is not as it was written", f"remove {description} to have it made anew")
    return Corpus(name, tokens, starts, marks, tokenizer, provenance=provenance_sum(origin))


def _sum(path: Path) -> int:
    found = 0
    with path.open("rb") as file:  # read and not mapped: pages that were mapped once count as memory in use
        while part := file.read(CHUNK):
            found = zlib.crc32(part, found)
    return found


def _mapped(base: Path, name: str, dtype: np.dtype[Any]) -> np.ndarray:
    path, fix = _part(base, name), f"remove {_part(base, 'json')} to have it made anew"
    files.refuse_device(path)
    try:
        # as a plain array: a memmap makes a new object, slowly, of everything that is cut from it
        return np.asarray(np.memmap(path, dtype=dtype, mode="r"))
    except FileNotFoundError:
        raise ModelError(path, "is missing", f"{fix}") from None
    except (OSError, ValueError) as error:
        raise ModelError(path, f"is damaged: {error}", f"{fix}") from None
