"""Frames on disk: written once, reused while nothing changed, and never wrong after damage, a kill or a full disk."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from caption_runs import write_images
from small_runs import flip_bit
from speech_runs import RATE, make_recordings, say

from weft.data.corpus import corpus_from_lines
from weft.data.dataset import Dataset
from weft.data.frame_batching import FrameExamples, pad_frames
from weft.data.frames import Frames, frames_from_arrays, open_frames, open_written, write_frames
from weft.data.manifest import ManifestFormat
from weft.errors import DataError, ModelError, ResourceError
from weft.media.audio import write_wav
from weft.media.files import MediaFile
from weft.tasks.asr.data import AudioReader
from weft.tasks.captioning.data import CaptionReader, FrameOptions
from weft.text.tokenizers import TokenizerConfig, train_tokenizer

READER = AudioReader(RATE, 10.0)


def dataset(manifest: Path) -> Dataset[Any]:
    return Dataset((manifest,), ManifestFormat())


class CountingReader(AudioReader):
    """Counts the files that are read."""

    files: list[str]

    def read(self, file: Any) -> np.ndarray:
        self.files.append(file.path.name)
        return super().read(file)


def counting(**options: Any) -> CountingReader:
    reader = CountingReader(**{"rate": RATE, "max_seconds": 10.0, **options})
    object.__setattr__(reader, "files", [])
    return reader


def num_reads(manifest: Path, directory: Path, **options: Any) -> int:
    """The files that writing the frames had to read."""
    reader = counting(**options)
    write_frames(dataset(manifest), reader, directory, "train")
    return len(reader.files)


def test_frames_are_the_samples_of_each_recording(tmp_path):
    manifest = make_recordings(tmp_path, 3)
    frames = write_frames(dataset(manifest), READER, tmp_path / "data", "train")
    texts = [line.split("\t")[1] for line in manifest.read_text().splitlines()[1:]]
    assert frames.lines == 3 and frames.values.dtype == np.int16 and frames.values.shape[1] == RATE // 100
    for number, text in enumerate(texts):
        samples = np.rint(say(text) * 32768).astype(np.int16)
        expected = np.pad(samples, (0, -len(samples) % 40)).reshape(-1, 40)
        np.testing.assert_array_equal(frames.frames(number), expected)
        assert frames.lengths()[number] == len(expected)
    again = open_frames(tmp_path / "data", "train")
    np.testing.assert_array_equal(again.values, frames.values)
    assert again.provenance == frames.provenance
    np.testing.assert_array_equal(frames.select(np.array([2, 0])).frames(0), frames.frames(2))


def test_frames_that_do_not_fit_on_the_disk_are_refused_early(tmp_path, monkeypatch):
    monkeypatch.setattr("weft.data.frames.ESTIMATED_FROM", 4)
    usage = namedtuple("usage", "total used free")
    free = 20_000
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage(10**9, 0, free))
    manifest, reader = make_recordings(tmp_path, 12), counting()
    with pytest.raises(
        ResourceError, match=r"the frames of 12 files take about 0\.\d GB on disk; 0\.0 GB are free; use smaller"
    ):
        write_frames(dataset(manifest), reader, tmp_path / "data", "train")
    assert len(reader.files) == 4 and not list((tmp_path / "data").iterdir())
    free = 10**9
    assert write_frames(dataset(manifest), READER, tmp_path / "data", "train").lines == 12


def test_frames_are_memory_mapped(tmp_path):
    """Slices are views of the file: data larger than memory can be read."""
    frames = write_frames(dataset(make_recordings(tmp_path, 3)), READER, tmp_path / "data", "train")
    base: Any = frames.frames(1)
    while not isinstance(base, np.memmap):
        assert base is not None and not base.flags.owndata
        base = base.base
    assert not frames.values.flags.writeable


def test_frames_are_written_again_only_if_something_changed(tmp_path):
    manifest, data = make_recordings(tmp_path, 3), tmp_path / "data"
    assert num_reads(manifest, data) == 3
    assert num_reads(manifest, data) == 0
    (tmp_path / "wav" / "train1.wav").touch()
    assert num_reads(manifest, data) == 0, "the time of a file does not matter"
    write_wav(tmp_path / "wav" / "train1.wav", say("abab"), RATE)
    assert num_reads(manifest, data) == 3, "the content of a file does"
    assert num_reads(manifest, data, max_seconds=9.0) == 3
    assert num_reads(manifest, data, rate=2000) == 3
    assert num_reads(manifest, data) == 3
    manifest.write_text(manifest.read_text() + "wav/train0.wav\tmore\n")
    assert num_reads(manifest, data) == 3
    assert num_reads(manifest, data) == 0


def test_images_are_not_read_again_either(tmp_path, monkeypatch):
    """Their size is part of the provenance: a tuple, of which JSON makes a list."""
    images = Dataset((write_images(tmp_path) / "images.tsv",), ManifestFormat(root=tmp_path / "images.zip"))
    reader, data = CaptionReader(FrameOptions("image", (8, 10), 3)), tmp_path / "data"
    written = write_frames(images, reader, data, "train")
    monkeypatch.setattr(CaptionReader, "read", None)
    np.testing.assert_array_equal(write_frames(images, reader, data, "train").values, written.values)


def test_a_resumed_run_refuses_other_recordings(tmp_path):
    manifest, data = make_recordings(tmp_path, 3), tmp_path / "data"
    provenance = write_frames(dataset(manifest), READER, data, "train").provenance
    write_frames(dataset(manifest), READER, data, "train", must_match=provenance)
    write_wav(tmp_path / "wav" / "train1.wav", say("abab"), RATE)
    with pytest.raises(DataError, match=r"not the text that the run was started with \(the content of a file has changed\)"):
        write_frames(dataset(manifest), READER, data, "train", must_match=provenance)


def test_the_other_processes_of_a_run_do_not_read_the_recordings(tmp_path, monkeypatch):
    manifest, data = make_recordings(tmp_path, 3), tmp_path / "data"
    written = write_frames(dataset(manifest), READER, data, "train")
    monkeypatch.setattr(MediaFile, "open", None)
    monkeypatch.setattr(MediaFile, "fingerprint", None)
    opened = open_written(dataset(manifest), READER, data, "train", written.provenance)
    assert opened.provenance == written.provenance
    np.testing.assert_array_equal(opened.values, written.values)
    description = json.loads((data / "train.json").read_text())
    older = {**description, "provenance": {**description["provenance"], "version": 0}}  # of a directory that is not shared
    (data / "train.json").write_text(json.dumps(older))
    with pytest.raises(
        ModelError, match=r"not what another process of this run has written; use a directory that all hosts share"
    ):
        open_written(dataset(manifest), READER, data, "train", written.provenance)
    (data / "train.json").write_text(json.dumps(description))
    manifest.write_text(manifest.read_text() + "wav/train0.wav\tmore\n")  # another one on this host
    with pytest.raises(DataError, match=r"has changed"):
        open_written(dataset(manifest), READER, data, "train", written.provenance)
    (data / "train.json").unlink()
    with pytest.raises(ModelError, match=r"train.json: "):
        open_written(dataset(manifest), READER, data, "train", written.provenance)


@pytest.mark.parametrize("array", ["values", "starts", "index"])
def test_damaged_arrays_are_detected_and_written_again(tmp_path, array):
    manifest, data = make_recordings(tmp_path, 3), tmp_path / "data"
    write_frames(dataset(manifest), READER, data, "train")
    path = data / f"train.{array}"
    good = path.read_bytes()
    for damage in ("flip", "truncate", "empty", "remove"):
        if damage == "flip":
            flip_bit(path)
        elif damage == "truncate":
            path.write_bytes(good[: len(good) // 2])
        elif damage == "empty":
            path.write_bytes(b"")
        else:
            path.unlink()
        with pytest.raises(ModelError) as caught:
            open_frames(data, "train")
        assert "train." in caught.value.where, damage
        assert num_reads(manifest, data) == 3
        assert path.read_bytes() == good


@pytest.mark.parametrize(
    "change",
    [
        {"width": 0}, {"width": 10**30}, {"width": "x"}, {"dtype": "O"}, {"dtype": "<f8"}, {"frames": 7}, {"checksums": {}},
        {"checksums": 3}, {"checksums": {"../../secret": 1}}, {"provenance": {}}, {"provenance": {"version": 99}}, None,
    ],
)  # fmt: skip
def test_a_damaged_description_is_refused(tmp_path, change):
    manifest, data = make_recordings(tmp_path, 2), tmp_path / "data"
    write_frames(dataset(manifest), READER, data, "train")
    description = data / "train.json"
    content = json.loads(description.read_text())
    if change is not None and "provenance" in change:
        change = {"provenance": {**content["provenance"], "version": 99} if change["provenance"] else {}}
    description.write_text("{" if change is None else json.dumps({**content, **change}))
    with pytest.raises(ModelError) as caught:
        open_frames(data, "train")
    message = str(caught.value)
    assert "train." in message and (change is None or "delete it to have the frames written again" in message)
    assert num_reads(manifest, data) == 2
    assert "not the description of frames" in message or change not in ({"width": "x"}, {"checksums": 3})


def test_recordings_that_cannot_be_read_are_refused_or_skipped(tmp_path):
    manifest, notes = make_recordings(tmp_path, 5), list[str]()
    (tmp_path / "wav" / "train0.wav").write_bytes(b"RIFF")
    (tmp_path / "wav" / "train3.wav").unlink()
    with pytest.raises(DataError) as caught:
        write_frames(dataset(manifest), READER, tmp_path / "data", "train")
    assert caught.value.where == f"{manifest}:5" and "train3.wav: file not found" in str(caught.value)
    assert not (tmp_path / "data" / "train.json").exists()
    skipping = AudioReader(RATE, 10.0, skips_errors=True)
    frames = write_frames(dataset(manifest), skipping, tmp_path / "data", "train", on_note=notes.append)
    assert (frames.lengths() > 0).tolist() == [False, True, True, False, True]
    assert len(notes) == 1 and "2 files were skipped: " in notes[0] and "train0.wav" in notes[0] and "train3.wav" in notes[0]
    for number in (1, 2, 4):
        (tmp_path / "wav" / f"train{number}.wav").unlink()
    with pytest.raises(DataError, match="none of 5 files can be used"):
        write_frames(dataset(manifest), skipping, tmp_path / "data", "train")


def test_a_file_with_several_texts_is_stored_once(tmp_path):
    manifest = make_recordings(tmp_path, 2)
    manifest.write_text("path\ttext\nwav/train0.wav\tone\nwav/train1.wav\ttwo\nwav/train0.wav\tthree\n")
    reader = counting()
    frames = write_frames(dataset(manifest), reader, tmp_path / "data", "train")
    assert reader.files == ["train0.wav", "train1.wav"]
    assert frames.index.tolist() == [0, 1, 0] and len(frames.starts) == 3
    np.testing.assert_array_equal(frames.frames(2), frames.frames(0))


def test_parts_of_one_recording_are_items(tmp_path):
    write_wav(tmp_path / "long.wav", say("abcd"), RATE)
    rows = [{"path": "long.wav", "text": text, "offset": 0.12 * number, "duration": 0.12} for number, text in enumerate("abcd")]
    (tmp_path / "parts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    frames = write_frames(dataset(tmp_path / "parts.jsonl"), READER, tmp_path / "data", "train")
    assert frames.lengths().tolist() == [12] * 4
    np.testing.assert_array_equal(frames.values[:, :], np.rint(say("abcd") * 32768).astype(np.int16).reshape(-1, 40))


CHILD = """
import os, signal, sys
from pathlib import Path
from weft.data.corpus import corpus_from_lines
from weft.data.dataset import Dataset
from weft.data.frames import write_frames
from weft.data.manifest import ManifestFormat
from weft.tasks.asr.data import AudioReader
from weft.tasks.captioning.data import CaptionReader, FrameOptions
manifest, data, rate, kill_at = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
class Killed(AudioReader):
    count = 0
    def read(self, file):
        Killed.count += 1
        if Killed.count == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().read(file)
write_frames(Dataset((manifest,), ManifestFormat()), Killed(rate, 10.0), data, "train")
"""


def test_a_kill_while_writing_leaves_nothing_that_looks_finished(tmp_path):
    manifest, data = make_recordings(tmp_path, 3), tmp_path / "data"
    expected = write_frames(dataset(manifest), READER, tmp_path / "whole", "train").values.copy()
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1] / "src")}
    command = [sys.executable, "-c", CHILD, str(manifest), str(data), str(RATE), "2"]
    assert subprocess.run(command, env=environment, check=False).returncode == -signal.SIGKILL
    assert not (data / "train.json").exists()
    frames = write_frames(dataset(manifest), READER, data, "train")
    np.testing.assert_array_equal(frames.values, expected)


@pytest.mark.parametrize("fail_at", [1, 2, 4])
def test_a_full_disk_is_one_error_and_the_old_frames_are_not_used(tmp_path, monkeypatch, fail_at):
    manifest, data = make_recordings(tmp_path, 3), tmp_path / "data"
    write_frames(dataset(manifest), READER, data, "train")
    write_wav(tmp_path / "wav" / "train1.wav", say("abab"), RATE)
    count, real = 0, os.write

    def full(descriptor: int, data: Any) -> int:
        nonlocal count
        count += 1
        if count >= fail_at:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(descriptor, data)

    with monkeypatch.context() as patch:
        patch.setattr("os.write", full)
        with pytest.raises(ResourceError, match="no space left on disk"):
            write_frames(dataset(manifest), READER, data, "train")
    with pytest.raises(ModelError):
        open_frames(data, "train")
    assert num_reads(manifest, data) == 3
    assert [path.name for path in data.iterdir() if path.name.startswith(".")] == []


# ---- batches


def test_batches_are_padded_with_zeros():
    rows = [np.ones((2, 3), np.int16), np.full((4, 3), 2, np.int16)]
    source, mask = pad_frames(rows)
    assert source.shape == (2, 4, 3) and mask.tolist() == [[True, True, False, False], [True] * 4]
    assert source[0, 2:].abs().sum() == 0 and source[1].eq(2).all()


def test_examples_leave_out_records():
    frames = frames_from_arrays("f", [np.full((length, 2), length, np.int16) for length in (3, 5, 2, 4)])
    assert isinstance(frames, Frames) and frames.lengths().tolist() == [3, 5, 2, 4]
    tokenizer = train_tokenizer(TokenizerConfig.model_validate({"type": "char"}), ["abcd"])
    target = corpus_from_lines(tokenizer, ["a", "bb", "c", "ddd"])
    examples = FrameExamples(frames, target, np.array([3, 1]))
    assert examples.sizes.tolist() == [[4, 4], [5, 3]] and examples.lengths().tolist() == [4, 5]
    batch = examples.batch(np.array([1, 0]))
    assert batch.source[:, 0, 0].tolist() == [5, 4]
    assert examples.loss_count(np.array([0])) == 4 and examples.tokens(np.array([0, 1])) == 16
    assert "2, 4" in examples.describe(np.array([0, 1]))
