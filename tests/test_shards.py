"""Corpora in shards: they equal one corpus, whatever the number of shards, and damage is found."""

from __future__ import annotations

import os
import shutil
from itertools import chain, pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_runs import flip_bit

from weft.data import sharded_array
from weft.data.array_files import provenance_hash
from weft.data.batching import Lines, Streams, Windows, by_length, carried_windows, sliding_windows
from weft.data.corpus import Corpus, write_corpus
from weft.data.sharded_array import ArrayPart, ShardedArray
from weft.data.shards import ALL, ShardWriter, Subset, open_shards, split_lines, unverified
from weft.data.source import Source
from weft.data.verification import BackgroundVerifier, read_verified, write_states
from weft.errors import DataError, ModelError, ResourceError
from weft.lock import Lock
from weft.text import reading
from weft.text.tokenizers import Tokenizer, TokenizerConfig, train_tokenizer

WORDS = ["the", "cat", "sat", "on", "a", "mat", "é", "and", "Straße", "ran", "東京", "far", "away", "from", "here"]


def make_text(path: Path, lines: int = 120) -> Path:
    rng = np.random.default_rng(0)
    rows = [" ".join(rng.choice(WORDS, size=rng.integers(0, 12))) for _ in range(lines)]
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path


def tokenizer_of(path: Path, kind: str = "bpe") -> Tokenizer:
    return train_tokenizer(TokenizerConfig(type=kind, vocab_size=300), iter([path.read_text(encoding="utf-8")]))


def writer(source: Source, tokenizer: Tokenizer, directory: Path, shard_chars: int) -> ShardWriter:
    return ShardWriter(source, tokenizer, directory, provenance_hash(source.provenance()), shard_chars)


def open_all(shards: ShardWriter, check=lambda: None) -> Corpus:
    provenance = {"tokenizer": shards.tokenizer.hash, **shards.source.provenance()}
    return open_shards(shards.directory, shards.directory.name, shards.describe(), provenance, check)


def in_shards(source: Source, tokenizer: Tokenizer, directory: Path, count: int) -> Corpus:
    """The corpus of a source in `count` shards."""
    batches = list(source.batches())
    total = sum(len(line) for lines in batches for line in lines)
    tried = chain([total], range(total // count, 0, -5), range(total // count, total))
    shard_chars = next(size for size in tried if max(number for number, _ in split_lines(batches, size)) + 1 == count)
    shards = writer(source, tokenizer, directory, shard_chars)
    shards.write()
    assert shards.num_shards() == count
    return open_all(shards)


# ---- arrays

KEYS = st.one_of(
    st.slices(40),
    st.integers(-40, 39),
    st.lists(st.integers(-40, 39), max_size=20).map(lambda numbers: np.array(numbers, np.int64)),
    st.lists(st.booleans(), min_size=40, max_size=40).map(np.array),
)


@given(edges=st.sets(st.integers(1, 39), max_size=6), key=KEYS, column=st.none() | st.integers(0, 2))
@settings(deadline=None, max_examples=200)
def test_an_array_in_several_files_is_indexed_like_one(tmp_path_factory, edges, key, column):
    folder = tmp_path_factory.mktemp("array")
    whole = np.arange(120, dtype="<i8").reshape(40, 3)
    bounds = [0, *sorted(edges), 40]
    parts = []
    for number, (low, high) in enumerate(pairwise(bounds)):
        path = folder / str(number)
        path.write_bytes((np.concatenate([whole[low:high], whole[:1]]) - low).astype("<i8").tobytes())  # a row more
        parts.append(ArrayPart(path, high - low, np.full(3, low)))
    array = ShardedArray(parts, "<i8", (3,))
    if column is not None:
        key = (key, column)
    assert np.array_equal(array[key], whole[key])
    assert np.asarray(array[key]).shape == whole[key].shape
    assert (len(array), array.shape, array.dtype) == (40, whole.shape, whole.dtype)
    assert np.array_equal(np.asarray(array), whole)


def test_indices_outside_an_array_are_refused_and_it_can_be_iterated(tmp_path):
    (tmp_path / "a").write_bytes(np.arange(5, dtype="<u2").tobytes())
    array = ShardedArray([ArrayPart(tmp_path / "a", 3), ArrayPart(tmp_path / "a", 5)], "<u2")
    assert list(array) == [0, 1, 2, 0, 1, 2, 3, 4]
    for key in (8, -9, np.array([0, 8])):
        with pytest.raises(IndexError):
            array[key]


def test_few_files_are_mapped_at_a_time_and_pages_are_released(tmp_path, monkeypatch):
    monkeypatch.setattr(sharded_array, "MAX_MAPPED", 2)
    monkeypatch.setattr(sharded_array, "RELEASE_BYTES", 1)  # after each read
    whole = np.arange(50_000, dtype="<u2")
    paths = [tmp_path / str(number) for number in range(10)]
    for path, part in zip(paths, np.split(whole, 10), strict=True):
        path.write_bytes(part.tobytes())
    array = ShardedArray([ArrayPart(path, 5000) for path in paths], "<u2")
    rng = np.random.default_rng(0)
    slices = [(start, array[start : start + 7000]) for start in range(0, 40_000, 1000)]
    for _ in range(20):
        indices = rng.integers(50_000, size=300)
        assert np.array_equal(array[indices], whole[indices])
        assert len(array._mapped) <= 2
    for start, values in slices:  # still valid
        assert np.array_equal(values, whole[start : start + 7000])


# ---- shards


@given(st.lists(st.lists(st.integers(0, 9), max_size=8), max_size=8), st.integers(1, 30))
def test_shards_have_all_lines_in_order_and_only_full_ones_end(lengths, shard_chars):
    batches = [["x" * length for length in batch] for batch in lengths]
    parts = list(split_lines(batches, shard_chars))
    assert list(chain.from_iterable(lines for _, lines in parts)) == list(chain.from_iterable(batches))
    assert all(lines for _, lines in parts)
    numbers = [number for number, _ in parts]
    assert sorted(set(numbers)) == list(range(len(set(numbers)))) and numbers == sorted(numbers)
    sizes = [sum(len(line) for owner, lines in parts if owner == number for line in lines) for number in set(numbers)]
    last = [next(lines for owner, lines in reversed(parts) if owner == number)[-1] for number in set(numbers)]
    for size, line in list(zip(sizes, last, strict=True))[:-1]:
        assert size >= shard_chars > size - len(line)
    flat = list(chain.from_iterable(batches))
    again = list(split_lines([[line] for line in flat], shard_chars))  # other batches, the same shards
    assert list(chain.from_iterable([number] * len(lines) for number, lines in parts)) == [number for number, _ in again]


@pytest.mark.parametrize("kind", ["bpe", "char", "word", "byte"])
@pytest.mark.parametrize("lines", [False, True])
def test_shards_equal_one_corpus(kind, lines, tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "CHUNK_CHARS", 500)  # several batches, and parts of long lines
    path = make_text(tmp_path / "a.txt")
    path.write_text(path.read_text() + " ".join(WORDS * 20) + "\n" + path.read_text(), encoding="utf-8")
    tokenizer = tokenizer_of(path, kind)
    for low, high in ((0.0, 0.9), (0.9, 1.0)):  # a fraction for validation, from the end
        source = Source((path,), lines=lines, low=low, high=high)
        whole = write_corpus(source, tokenizer, tmp_path, f"{low}")
        for count in (1, 3, 7):
            corpus = in_shards(source, tokenizer, tmp_path / f"{low}-{count}", count)
            assert np.array_equal(corpus.tokens, whole.tokens) and corpus.tokens.dtype == whole.tokens.dtype
            assert (corpus.starts is None) == (whole.starts is None) and corpus.lines == whole.lines
            assert whole.starts is None or np.array_equal(corpus.line_starts(), whole.line_starts())
            assert np.array_equal(corpus.cumulative_counts, whole.cumulative_counts)
            edges = np.linspace(0, len(whole.tokens), 23).astype(int)
            for unit, values in whole.units(edges).items():
                assert np.array_equal(corpus.units(edges)[unit], values)


def test_the_order_of_batches_does_not_depend_on_the_number_of_shards(tmp_path):
    path = make_text(tmp_path / "a.txt", 300)
    tokenizer = tokenizer_of(path)
    samplers = {
        False: [
            lambda corpus: Windows(corpus, context_length=16, stride=7, rows=5, seed=3),
            lambda corpus: Streams(corpus, context_length=16, rows=4),
        ],
        True: [lambda corpus: Lines(corpus, batch_tokens=90, seed=3)],
    }
    for lines, makers in samplers.items():
        source = Source((path,), lines=lines)
        corpora = [in_shards(source, tokenizer, tmp_path / f"{lines}-{count}", count) for count in (1, 3, 7)]
        whole = write_corpus(source, tokenizer, tmp_path, f"{lines}")
        for make in makers:
            expected = make(whole)
            for sampler in map(make, corpora):
                for epoch in range(2):
                    assert sampler.batches(epoch) == expected.batches(epoch) > 10
                    for index in range(expected.batches(epoch)):
                        for ours, theirs in zip(sampler.batch(epoch, index), expected.batch(epoch, index), strict=True):
                            assert (ours is theirs is None) or torch.equal(ours, theirs)
        passes = [lambda corpus: by_length(corpus, batch_tokens=90)] if lines else []
        passes += [] if lines else [lambda corpus: sliding_windows(corpus, context_length=16, stride=8, rows=3)]
        passes += [] if lines else [lambda corpus: carried_windows(corpus, context_length=16, rows=3, warmup=5)]
        for windows in passes:
            for corpus in corpora:
                for ours, theirs in zip(windows(corpus), windows(whole), strict=True):
                    assert np.array_equal(ours.tokens, theirs.tokens) and np.array_equal(ours.first, theirs.first)


def test_shares_write_the_same_files_as_one_process(tmp_path):
    path = make_text(tmp_path / "a.txt")
    source, tokenizer = Source((path,), lines=True), tokenizer_of(path)
    one, shared = (writer(source, tokenizer, tmp_path / name, 400) for name in ("one", "shared"))
    one.write()
    assert one.missing() == [] and shared.missing() is None
    for first in (2, 0, 1):
        shared.write(Subset(first, 3))
        assert shared.has_all(Subset(first, 3)) and shared.has_all(ALL) == (first == 1)
    names = {path.name for path in (tmp_path / "one").iterdir()}
    assert names == {path.name for path in (tmp_path / "shared").iterdir()} and len(names) > 12
    for name in names:
        if not name.endswith(".json"):
            assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "shared" / name).read_bytes()
    assert one.describe() == shared.describe()


def test_finished_shards_stay_and_others_are_written_again(tmp_path):
    path = make_text(tmp_path / "a.txt")
    shards = writer(Source((path,)), tokenizer_of(path), tmp_path / "shards", 400)
    shards.write()
    expected, before = shards.describe(), {path: path.stat() for path in shards.directory.iterdir()}
    (shards.directory / "00001.json").unlink()  # killed before the description was written
    (shards.directory / "00002.tokens").write_bytes(b"")  # a full disk
    (shards.directory / ".00002.tokens.tmp-1-0123456789ab").write_bytes(b"part")
    assert shards.missing() == [1, 2]
    shards.write()
    assert shards.missing() == [] and shards.describe() == expected
    assert {path.name for path in shards.directory.iterdir()} == {path.name for path in before}
    written = {path.name[:5] for path, stat in before.items() if path.stat().st_mtime_ns != stat.st_mtime_ns}
    assert written == {"00001", "00002", "end.j"}


def test_a_text_without_tokens_is_an_error(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("  \t  ")
    shards = writer(Source((path,)), train_tokenizer(TokenizerConfig(type="whitespace"), iter(["a b"])), tmp_path / "shards", 2)
    shards.write()
    with pytest.raises(DataError, match="no tokens"):
        shards.describe()


# ---- verification


@pytest.fixture
def prepared(tmp_path) -> tuple[Path, ShardWriter]:
    path = make_text(tmp_path / "a.txt")
    shards = writer(Source((path,)), tokenizer_of(path), tmp_path / "data" / "train", 400)
    shards.write()
    write_states(tmp_path / "data", shards.states())
    return tmp_path / "data", shards


def checks_of(directory: Path, shards: ShardWriter):
    return unverified(directory / "train", shards.describe(), read_verified(directory))


def test_files_in_the_state_of_their_writing_are_not_read(prepared):
    directory, shards = prepared
    assert checks_of(directory, shards) == []


def test_copies_are_verified_once_in_the_background(prepared, tmp_path):
    directory, shards = prepared
    copy = tmp_path / "copy"
    shutil.copytree(directory, copy)
    checks = checks_of(copy, shards)
    assert len(checks) == 2 * shards.num_shards()
    verifier = BackgroundVerifier(copy)
    verifier.start(checks)
    verifier.wait()
    assert checks_of(copy, shards) == []
    os.utime(copy / "train" / "00001.tokens")  # changed since
    assert [check.path.name for check in checks_of(copy, shards)] == ["00001.tokens"]


def test_a_damaged_shard_is_an_error_of_a_later_read(prepared):
    directory, shards = prepared
    flip_bit(directory / "train" / "00002.tokens")
    verifier = BackgroundVerifier(directory)
    corpus = open_all(shards, verifier.check)
    corpus.tokens[:10]
    verifier.start(checks_of(directory, shards))
    with pytest.raises(ModelError) as caught:
        verifier.wait()
    assert str(caught.value) == (
        f"{directory}/train/00002.tokens: checksum mismatch; run weft prepare --verify to write it again"
    )
    with pytest.raises(ModelError, match="checksum mismatch"):
        corpus.tokens[:10]
    assert shards.remove_damaged() == [directory / "train" / "00002.tokens"] and shards.missing() == [2]


def test_missing_and_truncated_shards_are_errors_when_they_are_opened(prepared):
    directory, shards = prepared
    entry, path = shards.describe(), directory / "train" / "00001.tokens"
    data = path.read_bytes()
    path.write_bytes(data[:-2])
    with pytest.raises(ModelError, match=rf"00001.tokens: corrupted: {len(data) - 2:,} bytes, expected {len(data):,}"):
        unverified(directory / "train", entry, {})
    path.unlink()
    with pytest.raises(ModelError, match=r"00001.tokens: file not found; run weft prepare"):
        unverified(directory / "train", entry, {})


def test_a_directory_that_cannot_be_written_to_is_verified_as_well(prepared, monkeypatch):
    directory, shards = prepared
    (directory / "verified.json").unlink()
    checks = checks_of(directory, shards)

    def refuse(*_):
        raise ResourceError(directory, "cannot write: Read-only file system")

    monkeypatch.setattr(Lock, "__enter__", refuse)
    monkeypatch.setattr("weft.data.verification.files.write_json", refuse)
    for is_damaged in (False, True):
        if is_damaged:
            flip_bit(checks[-1].path)
        verifier = BackgroundVerifier(directory)
        verifier.start(checks)
        if is_damaged:
            with pytest.raises(ModelError, match="checksum mismatch"):
                verifier.wait()
        else:
            verifier.wait()
    assert not (directory / "verified.json").exists()
