"""Recognition of a stream: equal to that of the whole recording, for any pieces and with a state of constant size."""

from __future__ import annotations

import io
import json
import wave
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from command_line import expect_error, set_stdin
from small_runs import SilentCallback
from spoken_runs import sounds, spoken_run, spoken_values, talkative, write_sounds

import weft
from weft.cli.formant_synthesis import RATE
from weft.cli.main import main
from weft.errors import DataError, UsageError
from weft.media.audio import to_int16
from weft.runs.job import train
from weft.runs.resolve import resolve
from weft.runs.run import AnyRun
from weft.tasks.asr.pcm import PCMReader
from weft.tasks.asr.streaming import SpeechStream
from weft.tasks.asr.utterances import Onset, Utterances

MODELS: dict[str, dict[str, Any]] = {
    "lstm": {"arch": "lstm"},
    "gru": {"arch": "gru", "tokenizer": "byte", "encoder": {"subsampling": 2, "conv_blocks": 1}},
    "transformer": {"arch": "transformer", "tokenizer": "whitespace", "num_heads": 2, "encoder": {"subsampling": 8}},
    "conformer": {"arch": "conformer", "num_heads": 2},
}


@pytest.fixture(scope="module")
def paths(tmp_path_factory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("runs")
    return {name: spoken_run(directory / name, **values) for name, values in MODELS.items()}


def pieces_of(samples: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """The samples in pieces of random sizes, some of them empty."""
    cuts = np.sort(rng.integers(0, len(samples) + 1, rng.integers(1, 40)))
    return np.split(samples, cuts)


@pytest.mark.parametrize("name", MODELS)
def test_a_stream_has_the_text_of_the_whole_recording(paths, name):
    run, rng = talkative(paths[name]), np.random.default_rng(0)
    stream, outputs = SpeechStream(run), list[str]()
    for sound in sounds(4):
        samples = to_int16(sound)
        whole = run.predict(samples, beam_size=1).text
        outputs.append(whole)
        for _ in range(3):
            pieces = [stream.push(piece) for piece in pieces_of(samples, rng)]
            assert "".join(pieces) + stream.finish() == whole
        assert "".join(change.new for change in run.predict_stream([sound], pause=0)) == whole  # floats
    assert len(set(outputs)) == 4 and all(outputs), outputs


def test_text_arrives_before_the_end(paths):
    run = talkative(paths["lstm"])
    stream, samples = SpeechStream(run), to_int16(np.concatenate(sounds(3)))
    texts = [stream.push(piece) for piece in np.array_split(samples, 50)]
    assert sum(bool(text) for text in texts) > 10
    assert stream.delay == pytest.approx((RATE // 80 + 3 * RATE // 100) / RATE)
    # a position is read as soon as its frames and half a window are there
    step, fresh = RATE // 100, SpeechStream(run)
    fresh.push(samples[: 4 * step - step + RATE // 80 - 1])
    assert fresh.stack_state is None
    fresh.push(samples[: 1 + step])
    assert fresh.stack_state is not None


# ---- utterances


def hesitant(path: Path) -> AnyRun:
    """A run that often writes nothing for some tenths of a second."""
    run = talkative(path)
    with torch.no_grad():
        run.model.ctc_head.bias[run.model.blank] += 2.0
    return run


@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_a_pause_ends_an_utterance(paths, name):
    """Each utterance has the text of its part of the recording, whatever the pieces are."""
    run, rng, samples = hesitant(paths[name]), np.random.default_rng(0), to_int16(np.concatenate(sounds(6)))
    changes = list(run.predict_stream([samples], pause=0.3))
    finals = [change for change in changes if change.is_final]
    assert [change.utterance for change in finals] == list(range(1, len(finals) + 1)) and len(finals) > 2
    for change in finals[:-1]:
        low, high = round(change.start * RATE), round(change.end * RATE)
        assert change.text == run.predict(samples[low:high], beam_size=1).text != ""
        assert "".join(part.new for part in changes if part.utterance == change.utterance) == change.text
        assert (high - low) % (RATE // 2) == 0
    assert all(first.end <= second.start for first, second in pairwise(finals))
    for _ in range(3):
        pieces = pieces_of(samples, rng)
        assert [change for change in run.predict_stream(pieces, pause=0.3) if change.is_final] == finals
    (whole,) = [change for change in run.predict_stream([samples], pause=0) if change.is_final]
    assert whole.text == run.predict(samples, beam_size=1).text and whole.end == len(samples) / RATE


def test_silence_without_text_is_no_utterance(paths):
    run = talkative(paths["lstm"])
    with torch.no_grad():
        run.model.ctc_head.bias[run.model.blank] += 1e4
    utterances = Utterances(SpeechStream(run), RATE, 1.0)
    noise = np.random.default_rng(0).normal(0, 100, 10 * RATE).astype(np.int16)
    assert [*utterances.push(noise), *utterances.finish()] == []
    assert utterances.number == 1 and utterances.position <= 1.5 * RATE  # the rest is not recognized
    # a sound is: from 0.3 s before it
    list(utterances.push(to_int16(sounds(1)[0])))
    assert utterances.onset is None and abs(utterances.start - (len(noise) - 0.3 * RATE)) < 0.05 * RATE


@pytest.mark.parametrize("level", [0, 5, 300])
def test_a_sound_is_found_whatever_the_pieces_are(level):
    rng = np.random.default_rng(1)
    quiet = rng.normal(0, level, 9 * RATE).astype(np.int16)
    sound = (quiet[:RATE] + 2000 * np.sin(np.arange(RATE) / 3)).astype(np.int16)
    starts = []
    for pieces in ([np.concatenate([quiet, sound])], pieces_of(np.concatenate([quiet, sound]), rng)):
        onset = Onset(quiet[: 2 * RATE], RATE)
        found = [onset.push(piece) for piece in pieces]
        assert next(piece for piece in found if piece is not None)[0] == quiet[onset.num_dropped]
        starts.append(onset.num_dropped)
    assert starts == [len(quiet) - 30 * RATE // 100] * 2


@pytest.mark.parametrize("pause", [-1.0, float("nan"), float("inf")])
def test_a_pause_is_a_time(paths, pause):
    with pytest.raises(UsageError, match="pause: expected 0 or more seconds, got"):
        weft.load(paths["lstm"]).predict_stream([], pause=pause)


def test_the_command_prints_a_line_per_utterance(paths, monkeypatch, capsys):
    run, samples = hesitant(paths["lstm"]), to_int16(np.concatenate(sounds(6)))
    monkeypatch.setattr("weft.cli.commands.predict.Predict.load", lambda command: run)
    changes = list(run.predict_stream([samples], pause=0.3))
    set_stdin(monkeypatch, samples.astype("<i2").tobytes())
    assert main(["predict", "any", "--stream", "--pause", "0.3"]) == 0
    lines = [change.text for change in changes if change.is_final]
    assert capsys.readouterr().out == "".join(f"{line}\n" for line in lines)
    set_stdin(monkeypatch, samples.astype("<i2").tobytes())
    assert main(["predict", "any", "--stream", "--pause", "0.3", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["text"] for row in rows if row["final"]] == lines and len(rows) > len(lines)
    assert rows[-1].keys() == {"utterance", "text", "final", "start", "end"} and rows[-1]["end"] <= len(samples) / RATE
    set_stdin(monkeypatch, b"")
    assert main(["predict", "any", "--stream", "--json"]) == 0
    assert capsys.readouterr().out == ""


def test_a_pause_needs_a_stream(paths, capsys):
    code, message = expect_error(capsys, "predict", str(paths["lstm"]), "a.wav", "--pause", "1")
    assert (code, message) == (2, "--pause: requires --stream")


# ---- states


def tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [leaf for part in value for leaf in tensors(part)] if isinstance(value, list | tuple) else []


@pytest.mark.parametrize("name", ["lstm", "conformer"])
def test_the_state_does_not_grow(paths, name):
    run, sound = weft.load(paths[name], device="cpu"), to_int16(sounds(1)[0][:RATE])
    if name == "conformer":  # attention sees 60 s at most; a shorter context for the test
        for layer in run.model.encoder.stack.layers[1::4]:
            layer.mixer.context_length = 20
    stream, sizes = SpeechStream(run), list[int]()
    for _ in range(12):
        stream.push(sound)
        state = [stream.norm_state, stream.conv_state, stream.stack_state, stream.log_mel.buffer, stream.features]
        sizes.append(sum(leaf.untyped_storage().nbytes() for leaf in tensors(state)))
        assert len(stream.detokenizer.tokens) < 10
    assert max(sizes[6:]) <= max(sizes[:6])
    assert sizes[0] > 0


# ---- refused


@pytest.mark.parametrize(
    ("model", "problem"),
    [
        ({"encoder": {"bidirectional": True}}, "the encoder is bidirectional: it reads the whole recording"),
        ({"ctc_weight": 0.3}, "the attention decoder reads the whole recording"),
        ({"normalization": "utterance"}, "the features are normalized over the whole recording"),
    ],
)
def test_models_that_need_the_whole_recording_are_refused(tmp_path, model, problem):
    config = resolve(spoken_values(write_sounds(tmp_path), "lstm", **model), base=tmp_path)
    run: Any = SimpleNamespace(config=config, lm=None)
    run.members = [run]
    with pytest.raises(UsageError, match=problem):
        SpeechStream(run)


def test_several_models_are_refused(paths):
    path = str(paths["lstm"])
    with pytest.raises(UsageError, match="not available for several models"):
        weft.ensemble([path, path]).predict_stream([])


def test_a_stream_longer_than_learned_positions_is_refused(paths):
    stream = SpeechStream(weft.load(paths["lstm"]))
    stream.model.encoder.stack.positions.max_positions = 30
    stream.push(np.zeros(RATE, np.int16))
    with pytest.raises(DataError, match="longer than the learned positions of the model"):
        stream.push(np.zeros(RATE, np.int16))


NOT_SAMPLES = "expected an array of samples: 16-bit integers, or numbers in [-1, 1]"


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (np.zeros((2, 2)), NOT_SAMPLES),
        (np.zeros(3, np.int32), NOT_SAMPLES),
        (np.array(["a"]), NOT_SAMPLES),
        (np.array([np.nan]), "the samples are not finite"),
    ],
)
def test_what_is_not_samples_is_refused(paths, value, problem):
    with pytest.raises(DataError) as error:
        SpeechStream(weft.load(paths["lstm"])).push(value)
    assert error.value.problem == problem


def test_other_tasks_read_no_streams(tmp_path):
    (tmp_path / "a.txt").write_text("one two\n" * 40)
    values = {"task": "lm", "data": {"train": str(tmp_path / "a.txt")}, "model": {"arch": "ngram"}}
    train(values, tmp_path / "lm", base=tmp_path, callback=SilentCallback())
    with pytest.raises(UsageError, match="models of task 'lm' read no streams"):
        weft.load(tmp_path / "lm").predict_stream([])


# ---- bytes


def wav(samples: np.ndarray, rate: int = RATE, *, channels: int = 1, width: int = 2) -> bytes:
    data = io.BytesIO()
    with wave.open(data, "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(samples.tobytes())
    return data.getvalue()


def read_pieces(data: bytes, size: int) -> np.ndarray:
    reader = PCMReader(RATE)
    return np.concatenate([*(reader.push(data[low : low + size]) for low in range(0, len(data), size)), reader.finish()])


@pytest.mark.parametrize("size", [1, 7, 64, 10_000])
def test_bytes_become_samples(size):
    samples = np.arange(-500, 500, dtype=np.int16)
    assert np.array_equal(read_pieces(samples.tobytes(), size), samples)
    assert np.array_equal(read_pieces(samples.tobytes() + b"\1", size), samples)
    assert np.array_equal(read_pieces(wav(samples), size), samples)
    # chunks before and after the samples, and a program that does not know the length
    head, tail = wav(samples)[:12], wav(samples)[12:]
    extra = b"LIST\x03\0\0\0abc\0"
    assert np.array_equal(read_pieces(head + extra + tail + extra, size), samples)
    unknown = bytearray(wav(samples))
    unknown[40:44] = b"\xff\xff\xff\xff"
    assert np.array_equal(read_pieces(bytes(unknown), size), samples)
    pairs = np.repeat(samples, 2)
    assert np.array_equal(read_pieces(wav(pairs, channels=2), size), samples)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (wav(np.zeros(9, np.int16), 16_000), "16,000 Hz, but the run reads 8,000 Hz (data.sample_rate)"),
        (wav(np.zeros(9, np.int32), width=4), "expected 16-bit PCM, got format 1 with 32 bits"),
        (b"fLaC" + bytes(20), "FLAC is not supported in a stream"),
        (b"OggS" + bytes(20), "Ogg is not supported in a stream"),
        (wav(np.zeros(9, np.int16))[:20], "the WAV header is incomplete"),
        (b"RIFF\0\0\0\0WAVEdata\x02\0\0\0ab", "the WAV header has no format"),
        (b"RIFF\0\0\0\0WAVEjunk\xff\xff\xff\x7f", "a WAV header of more than 1,048,576 bytes"),
    ],
)
def test_other_bytes_are_refused(data, problem):
    with pytest.raises(DataError) as error:
        read_pieces(data, 5)
    assert error.value.problem == problem


# ---- the command


def test_the_command_prints_the_text_of_the_file(paths, tmp_path, monkeypatch, capsys):
    manifest = write_sounds(tmp_path)
    assert main(["predict", str(paths["lstm"]), str(tmp_path / "0.wav"), "--beam-size", "1"]) == 0
    expected = capsys.readouterr().out
    set_stdin(monkeypatch, (tmp_path / "0.wav").read_bytes())
    assert main(["predict", str(paths["lstm"]), "--stream"]) == 0
    assert capsys.readouterr().out == expected
    assert manifest.exists()


def test_a_terminal_is_refused(paths, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
    code, message = expect_error(capsys, "predict", str(paths["lstm"]), "--stream")
    assert (code, message) == (2, "--stream: standard input is a terminal; pipe audio into the command")


def test_text_is_printed_while_audio_arrives(paths, monkeypatch, capsys):
    run, samples = talkative(paths["lstm"]), to_int16(np.concatenate(sounds(3)))
    monkeypatch.setattr("weft.cli.commands.predict.Predict.load", lambda command: run)
    chunks = iter([piece.astype("<i2").tobytes() for piece in np.array_split(samples, 20)])
    printed = []

    def read1(size: int) -> bytes:
        printed.append(capsys.readouterr().out)
        return next(chunks, b"")

    stdin = SimpleNamespace(buffer=SimpleNamespace(read1=read1), isatty=lambda: False)
    monkeypatch.setattr("sys.stdin", stdin)
    assert main(["predict", "any", "--stream"]) == 0
    printed.append(capsys.readouterr().out)
    assert sum(map(bool, printed)) > 8
    assert "".join(printed) == run.predict(samples, beam_size=1).text + "\n"


@pytest.mark.parametrize(
    ("flags", "name"),
    [(["a.wav"], "text"), (["--beam-size", "4"], "beam-size"), (["--n-best", "2"], "n-best")],
)
def test_the_command_refuses_other_options(paths, monkeypatch, capsys, flags, name):
    set_stdin(monkeypatch, b"")
    code, message = expect_error(capsys, "predict", str(paths["lstm"]), "--stream", *flags)
    assert code == 2 and message.startswith("--stream: cannot be combined with") and name in message
