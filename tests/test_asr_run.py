"""Speech recognition from recordings to transcripts: check, train, resume, evaluate, predict, ensembles, fusion, data in memory."""

from __future__ import annotations

import io
import json
import re
import wave
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command_line import expect_error, set_stdin
from killable import Killable, count_lines
from small_runs import SilentCallback, leftovers, run_hashes, train_here
from speech_runs import RATE, make_recordings, say, speech_run_file, texts

import weft
from weft.cli.main import main
from weft.errors import ConfigError, DataError, TrainingInterrupted, UsageError
from weft.media.audio import write_wav
from weft.runs.run import AnyRun
from weft.tasks.asr.data import SpeechDataConfig
from weft.tasks.media_data import MediaDataConfig, _input_columns
from weft.tensors import read_listed


class Trained:
    """A directory with recordings, and three runs with the same tokenizer."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.manifest = make_recordings(directory)
        self.test = make_recordings(directory, 4, name="test", seed=9)
        self.wavs = [str(directory / "wav" / f"test{number}.wav") for number in range(4)]
        self.out = directory / "ctc"
        self.notes = SilentCallback()
        train_here(speech_run_file(self.manifest), self.out, self.notes)
        joint = speech_run_file(self.manifest, model__ctc_weight=0.4, model__arch="gru", model__attention="dot", seed=4)
        train_here({**joint, "tokenizer": {"file": str(self.out / "tokenizer.json")}}, directory / "joint")

    @property
    def run(self) -> AnyRun:
        return weft.load(self.out)

    @property
    def joint(self) -> AnyRun:
        return weft.load(self.directory / "joint")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return Trained(tmp_path_factory.mktemp("asr"))


def toml(directory: Path, **options: Any) -> Path:
    """A run file in `directory` with a manifest beside it."""
    lines = []
    for name, value in speech_run_file("train.tsv", **options).items():
        if not isinstance(value, dict):
            lines.insert(0, f"{name} = {json.dumps(value)}")
            continue
        inner = {key: item for key, item in value.items() if isinstance(item, dict)}
        lines += [f"[{name}]", *(f"{key} = {json.dumps(item)}" for key, item in value.items() if key not in inner)]
        for key, table in inner.items():
            lines += [f"[{name}.{key}]", *(f"{option} = {json.dumps(item)}" for option, item in table.items())]
    (directory / "run.toml").write_text("\n".join(lines) + "\n")
    return directory / "run.toml"


# ---- training


@pytest.mark.parametrize("model", ["ctc", "joint"])
def test_a_run_stopped_at_a_checkpoint_ends_identically(tmp_path, trained, model):
    """Bit for bit, with augmentation, dropout and averaged weights."""
    options: dict[str, Any] = {
        "model__num_freq_masks": 2, "model__freq_mask_width": 3, "model__num_time_masks": 1, "model__dropout": 0.2,
        "model__speed_perturbation": [0.9, 1.1], "train__ema_decay": 0.9, "train__max_steps": 6, "train__num_validations": 3,
        "model__ctc_weight": 1.0 if model == "ctc" else 0.5,
    }  # fmt: skip
    values = speech_run_file(trained.manifest, **options)
    train_here(values, tmp_path / "whole")

    stopping = tmp_path / "stopped"
    for step in (1, 2, 5):
        with pytest.raises(TrainingInterrupted):
            train_here(values, stopping, SilentCallback(stop_at=step))
    train_here(values, stopping)
    assert run_hashes(stopping) == run_hashes(tmp_path / "whole")
    assert leftovers(stopping) == []


@pytest.mark.slow
def test_a_run_killed_while_it_saves_or_begins_ends_identically(tmp_path, trained):
    """Killed before several lines of the code that writes checkpoints and data."""
    values = speech_run_file(trained.manifest, model__dropout=0.2, train__ema_decay=0.9, train__max_steps=6)
    train_here(values, tmp_path / "whole")
    expected = run_hashes(tmp_path / "whole")
    with Killable() as children:
        for part in ("save", "begin"):
            for line in range(1, count_lines(part), 7):
                out = tmp_path / f"{part}{line}"
                children.train(values, out, before=(part, line))
                assert children.train(values, out)
                assert run_hashes(out) == expected and leftovers(out) == []


def test_the_last_weights_can_be_kept(tmp_path, trained):
    """`keep = "last"` saves the weights of the last step, `best` those of the best validation, here an earlier one."""
    # no error rate improves
    options = {"train__max_steps": 4, "train__num_validations": 4, "train__lr": 1e-6, "train__monitor": "wer"}
    for keep in ("last", "best"):
        out = tmp_path / keep
        train_here(speech_run_file(trained.manifest, train__keep=keep, **options), out)
        saved, _ = read_listed(max((out / "checkpoints").iterdir()) / "model.safetensors")
        kept = weft.load(out).model.state_dict()
        assert all(torch.equal(kept[name], saved[name]) for name in saved) == (keep == "last")
    with pytest.raises(ConfigError, match="'last' is not possible with patience"):
        train_here(speech_run_file(trained.manifest, train__keep="last", train__patience=2), tmp_path / "both")


def test_recordings_too_short_for_their_text_are_named_and_skipped(tmp_path, trained):
    long = "abcd" * 10
    manifest = make_recordings(tmp_path, 4)
    rows = manifest.read_text().splitlines()
    manifest.write_text("\n".join([rows[0], rows[1].rsplit("\t", 1)[0] + f"\t{long}", *rows[2:]]) + "\n")
    callback = SilentCallback()
    train_here(speech_run_file(manifest, data__valid=None, train__monitor=None), tmp_path / "run", callback)
    problem, fix = (
        "1 training file is too short for CTC to write the text and skipped",
        "; lower model.encoder.subsampling to use",
    )
    assert any(f"{problem} ({manifest}:2){fix}" in note for note in callback.notes)
    log = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert all(np.isfinite(value) for line in log for value in line.values() if isinstance(value, float))
    manifest.write_text("\n".join([rows[0], *(row.rsplit("\t", 1)[0] + f"\t{long}" for row in rows[1:])]) + "\n")
    with pytest.raises(DataError, match="no file is long enough for its text"):
        train_here(speech_run_file(manifest, data__valid=None), tmp_path / "none")


def test_validation_recordings_too_short_for_their_text_are_named(tmp_path, trained):
    """Each file once, although it has two references, and finite scores without it."""
    rows = [f"{wav}\tab" for wav in trained.wavs[:2]] + [
        f"{wav}\t{'abcd' * 10}" for wav in (*trained.wavs[2:], trained.wavs[2])
    ]
    (tmp_path / "valid.tsv").write_text("\n".join(["path\ttext", *rows]) + "\n")
    callback = SilentCallback()
    train_here(speech_run_file(trained.manifest, data__valid=str(tmp_path / "valid.tsv")), tmp_path / "run", callback)
    problem = "2 validation files are too short for CTC to write the text and skipped"
    shown = f"({tmp_path / 'valid.tsv'}:4, {tmp_path / 'valid.tsv'}:5)"
    assert [note for note in callback.notes if problem in note and shown in note]
    log = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    scores = [value for line in log for name, value in line.items() if name.startswith("valid") and value is not None]
    assert scores and np.isfinite(scores).all()
    attention = SilentCallback()
    values = speech_run_file(trained.manifest, data__valid=str(tmp_path / "valid.tsv"), model__ctc_weight=0.0)
    train_here(values, tmp_path / "attention", attention)
    assert not any("too short" in note for note in attention.notes)


@pytest.mark.parametrize(
    "text, problem",
    [("", "the texts have no words, so there is no error rate"), ("abcd" * 10, "no file is long enough for its text")],
)
def test_validation_data_that_cannot_be_scored_is_refused(tmp_path, trained, text, problem):
    valid = tmp_path / "valid.tsv"
    valid.write_text(f"path\ttext\n{trained.wavs[0]}\t{text}\n")
    with pytest.raises(DataError, match=problem):
        train_here(speech_run_file(trained.manifest, data__valid=str(valid)), tmp_path / "run")


def test_unreadable_recordings_in_training(tmp_path):
    manifest = make_recordings(tmp_path, 4)
    (tmp_path / "wav" / "train1.wav").unlink()
    with pytest.raises(DataError) as caught:
        train_here(speech_run_file(manifest, data__valid=None), tmp_path / "run")
    assert caught.value.where == f"{manifest}:3" and "file not found" in str(caught.value)
    callback = SilentCallback()
    train_here(speech_run_file(manifest, data__valid=None, data__on_error="skip"), tmp_path / "run2", callback)
    assert any("1 file was skipped" in note for note in callback.notes)


def test_a_text_longer_than_the_limit_is_refused(tmp_path):
    manifest = make_recordings(tmp_path, 4)
    with pytest.raises(DataError, match=r"text has \d tokens, more than data.max_length \(2\)"):
        train_here(speech_run_file(manifest, data__max_length=2), tmp_path / "run")


def test_a_recording_longer_than_the_limit_is_refused_by_its_header(tmp_path):
    """Three hours of silence are not decoded."""
    manifest = make_recordings(tmp_path, 2)
    with (tmp_path / "wav" / "train0.wav").open("wb") as stream, wave.open(stream, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(b"")
    path = tmp_path / "wav" / "train0.wav"
    size = 3 * 3600 * 8000 * 2
    header = bytearray(path.read_bytes())
    header[4:8], header[40:44] = (size + 36).to_bytes(4, "little"), size.to_bytes(4, "little")
    path.write_bytes(header)
    with path.open("r+b") as stream:
        stream.truncate(len(header) + size)  # a hole: no space on disk
    with pytest.raises(DataError, match=r"10,800.0 s are more than the limit of 60 s"):
        train_here(speech_run_file(manifest, data__valid=None), tmp_path / "run")


# ---- checking


def test_check_finds_bad_files_and_shared_files_and_speakers(tmp_path):
    make_recordings(tmp_path, 4)
    (tmp_path / "wav" / "train1.wav").write_bytes(b"no sound")
    (tmp_path / "train.tsv").write_text(
        "path\ttext\tspeaker\nwav/train0.wav\tab\tann\nwav/train1.wav\tcd\tbob\nwav/train2.wav\tba\tann\n"
    )
    (tmp_path / "valid.tsv").write_text("path\ttext\tspeaker\nwav/train3.wav\tab\tann\n")
    (tmp_path / "test.tsv").write_text("path\ttext\tspeaker\nwav/train0.wav\tda\tcat\n")
    run_file = toml(tmp_path, data__valid="valid.tsv", data__test="test.tsv")
    found = {(item.name, item.split): item for item in weft.check(run_file)}
    assert "1 of 3 files (33.3%) cannot be used" in found["unreadable_file", "train"].message
    assert found["unreadable_file", "train"].severity == "error" and found["unreadable_file", "train"].rows == (1,)
    assert "1 of 1 files (100%) also occur in another split" in found["file_overlap", "test"].message
    assert "1 speakers also occur in another split: ann" in found["speaker_overlap", "valid"].message
    skipping = weft.check(run_file, overrides=['data.on_error="skip"'])
    assert {item.severity for item in skipping if item.name == "unreadable_file"} == {"warning"}


def test_check_on_the_command_line(tmp_path, capsys):
    make_recordings(tmp_path, 4)
    (tmp_path / "wav" / "train1.wav").unlink()
    code = main(["check", str(toml(tmp_path, data__valid=None))])
    assert code == 3 and "cannot be used" in capsys.readouterr().out
    make_recordings(tmp_path, 4)
    (tmp_path / "train.tsv").write_text("path\ttext\n" + "".join(f"wav/train{number}.wav\t\n" for number in range(4)))
    assert main(["check", str(tmp_path / "run.toml")]) == 3  # training refuses it as well
    assert "all texts are empty" in capsys.readouterr().out


# ---- recognizing


def test_inputs_of_every_kind_give_the_same_transcript(trained, tmp_path):
    run = trained.run
    expected = run.predict(trained.wavs[0]).text
    samples = np.rint(say(texts(4, 9)[0]) * 32768).astype(np.int16)
    for value in (Path(trained.wavs[0]), samples, samples / 32768, (samples, RATE), (samples.tolist(), RATE)):
        assert run.predict([value])[0].text == expected
    assert run.predict(samples).text == expected and run.predict((samples, RATE)).text == expected
    assert [item.text for item in run.predict([*trained.wavs, samples])] == [
        *(run.predict(path).text for path in trained.wavs),
        expected,
    ]
    write_wav(tmp_path / "fast.wav", say("ab", rate=2 * RATE), 2 * RATE)
    assert isinstance(run.predict(tmp_path / "fast.wav").text, str), "another sampling rate is resampled"


@pytest.mark.parametrize(
    "value, problem",
    [
        (np.zeros((5, 2)), "expected a path, an array of samples, or a tuple of samples and their rate"),
        ((np.zeros(9), "x"), "expected a path, an array of samples, or a tuple of samples and their rate"),
        (np.zeros(0), "the samples are empty or not finite"),
        (np.full(4000, np.nan), "the samples are empty or not finite"),
        (np.zeros(10), "0.003 s are too short to recognize"),
        (np.zeros(61 * RATE, np.float32), "61 s are more than data.max_seconds (60)"),
        (np.full(4000, 20_000.0), "samples up to 20,000 are outside -1 to 1"),
        (np.full(4000, 100_000), "samples up to 100,000 are outside -32,768 to 32,768"),
        ((np.zeros(4000), 10**12), "a sample rate of 1,000,000,000,000 Hz is outside"),
    ],
)
def test_bad_waveforms_are_refused(trained, value, problem):
    with pytest.raises(DataError) as caught:
        trained.run.predict([value])
    assert problem in str(caught.value)


@pytest.mark.parametrize("name", ["ctc", "joint"])
def test_scores_equal_those_of_predictions(trained, name):
    """The log-probability of the best output is its score; several outputs are sorted; sampling depends on the seed only."""
    run = weft.load(trained.directory / name)
    best = run.predict(trained.wavs[0], beam_size=4, n_best=3)
    outputs = best.ranked()
    assert [item.score for item in outputs] == sorted((item.score for item in outputs), reverse=True) and len(outputs) == 3
    (score,) = run.score([(trained.wavs[0], best.text)])
    assert score.log_prob == pytest.approx(best.log_prob, abs=1e-3)
    assert score.tokens[-1] == "</s>" and len(score.tokens) == len(score.token_log_probs)
    sampled = run.predict(trained.wavs[:2], num_samples=3, temperature=1.0, seed=5)
    again = run.predict(trained.wavs[1:2], num_samples=3, temperature=1.0, seed=5, numbers=[2])
    assert [item.text for item in sampled[1].ranked()] == [item.text for item in again[0].ranked()]


def test_options_that_a_run_does_not_support(trained):
    with pytest.raises(UsageError, match="expected one per input"):
        trained.run.predict(trained.wavs[:2], numbers=[1])
    with pytest.raises(UsageError, match="contains a token that is not in the vocabulary"):
        trained.run.predict(trained.wavs[:1], target_prefix="xyz")
    assert trained.run.predict(trained.wavs[0], target_prefix="ab").text.startswith("ab")
    with pytest.raises(UsageError, match="not available for several models"):
        weft.ensemble([trained.out, trained.directory / "joint"]).predict(trained.wavs[:1], return_alignments=True)


def test_word_times_need_a_ctc_output_or_attention(trained, tmp_path):
    options = {"model__ctc_weight": 0.0, "model__attention": "none", "train__max_steps": 1, "train__num_validations": 1}
    values = speech_run_file(trained.manifest, **options)
    train_here(values, tmp_path / "attention")
    run = weft.load(tmp_path / "attention")
    with pytest.raises(UsageError, match="requires a CTC output or attention"):
        run.predict(trained.wavs[:1], return_alignments=True)
    assert isinstance(run.predict(trained.wavs[0]).text, str)
    prediction = trained.run.predict(trained.wavs[0], return_alignments=True)
    times = prediction.alignment
    assert "".join(token.word for token in times.tokens) == prediction.text
    assert all(0 <= token.start < token.end <= 0.12 * 5 for token in times.tokens)


def test_evaluation_and_comparison(trained, capsys):
    result = trained.run.evaluate(str(trained.test))
    assert {"wer", "cer", "exact_match"} <= set(result.scores)
    assert main(["evaluate", str(trained.out), "--data", str(trained.test), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert "wer" in json.dumps(shown)
    assert main(["compare", str(trained.out), str(trained.directory / "joint"), "--data", str(trained.test)]) == 0
    assert "WER" in capsys.readouterr().out
    assert main(["info", str(trained.out)]) == 0
    assert "asr" in capsys.readouterr().out


def test_ensembles_and_averages(trained, tmp_path):
    both = weft.ensemble([trained.out, trained.directory / "joint"])
    assert isinstance(both.predict(trained.wavs[0]).text, str)
    assert "runs:2" in both.evaluate(str(trained.test)).scores["wer"].signature
    alone = weft.ensemble([trained.out, trained.out])
    assert alone.predict(trained.wavs[0], beam_size=4).text == trained.run.predict(trained.wavs[0], beam_size=4).text
    train_here(speech_run_file(trained.manifest, train__max_steps=6), tmp_path / "longer")
    runs = [str(trained.out), str(tmp_path / "longer")]
    assert main(["average", *runs, "--output-dir", str(tmp_path / "average"), "--quiet"]) == 0
    weights = [weft.load(path).model.state_dict()["ctc_head.weight"] for path in (*runs, tmp_path / "average")]
    torch.testing.assert_close(weights[2], (weights[0] + weights[1]) / 2)


@pytest.mark.parametrize("arch", ["ngram", "lstm"])
def test_fusion_with_a_language_model_of_transcripts(trained, tmp_path, capsys, arch):
    """A strong language model changes what is recognized: transcripts are always "dd"."""
    (tmp_path / "text.txt").write_text("dd\n" * 50)
    model = {"arch": arch, "order": 3} if arch == "ngram" else {"arch": arch, "hidden_size": 8, "num_layers": 1}
    values: dict[str, Any] = {
        "task": "lm", "recommend": False, "data": {"train": str(tmp_path / "text.txt"), "read_as": "lines"},
        "tokenizer": {"file": str(trained.out / "tokenizer.json")}, "model": model,
    }  # fmt: skip
    if arch != "ngram":
        values["train"] = {"max_steps": 40, "batch_tokens": 64, "lr": 0.05, "device": "cpu"}
    train_here(values, tmp_path / "lm")
    for run_dir in (trained.out, trained.directory / "joint"):
        args = ["predict", str(run_dir), trained.wavs[0], "--beam-size", "8"]
        assert main([*args, "--lm", str(tmp_path / "lm"), "--lm-weight", "50"]) == 0
        assert capsys.readouterr().out == "dd\n"
    fused = weft.ensemble([trained.out], lm=tmp_path / "lm", lm_weight=0.5)
    assert "lm" in fused.evaluate(str(trained.test)).scores["wer"].signature


# ---- the command line


def test_predictions_of_a_path_a_manifest_and_lines(trained, capsys, monkeypatch, tmp_path):
    expected = [item.text for item in trained.run.predict(trained.wavs)]
    assert main(["predict", str(trained.out), trained.wavs[0]]) == 0
    assert capsys.readouterr().out == expected[0] + "\n"
    set_stdin(monkeypatch, "\n".join(trained.wavs).encode() + b"\n")
    assert main(["predict", str(trained.out)]) == 0
    assert capsys.readouterr().out.split("\n")[:-1] == expected
    manifest = tmp_path / "absolute.tsv"
    manifest.write_text("path\ttext\n" + "".join(f"{path}\tx\n" for path in trained.wavs))
    assert main(["predict", str(trained.out), "--input", str(manifest)]) == 0
    lines = capsys.readouterr().out.split("\n")
    assert lines[0] == "path\ttext\tprediction" and [line.split("\t")[-1] for line in lines[1:-1]] == expected
    assert main(["predict", str(trained.out), trained.wavs[0], "--json", "--n-best", "2", "--beam-size", "3"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert output["source"] == trained.wavs[0] and len(output["predictions"]) == 2


def test_the_paths_of_a_manifest_are_relative_to_it(trained, capsys, monkeypatch, tmp_path):
    """As in training, wherever the command runs."""
    expected = [item.text for item in trained.run.predict(trained.wavs)]
    monkeypatch.chdir(tmp_path)
    assert main(["predict", str(trained.out), "--input", str(trained.test)]) == 0
    lines = capsys.readouterr().out.split("\n")[1:-1]
    assert [line.split("\t")[-1] for line in lines] == expected
    for name, key in (("nemo.jsonl", "audio_filepath"), ("clips.jsonl", "clip")):
        rows = [{key: f"wav/test{number}.wav", "text": "x"} for number in range(4)]
        path = trained.directory / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        assert main(["predict", str(trained.out), "--input", str(path)]) == 0
        shown = [json.loads(line)["prediction"] for line in capsys.readouterr().out.split("\n")[:-1]]
        assert shown == expected


def test_parts_of_recordings_are_recognized(trained, capsys, tmp_path):
    """The offset and duration of a manifest count, as in training."""
    write_wav(tmp_path / "long.wav", say("abcd"), RATE)
    parts = [{"offset": 0.24, "duration": 0.24}, {"offset": 0.0, "duration": 0.24}, {}, {"offset": "x"}]
    rows = [{"path": "long.wav", **part} for part in parts]
    (tmp_path / "parts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["predict", str(trained.out), "--input", str(tmp_path / "parts.jsonl")]) == 3
    captured = capsys.readouterr()
    shown = [json.loads(line) for line in captured.out.split("\n")[:-1]]
    first, second = np.split(say("abcd"), 2)
    assert [row["prediction"] for row in shown] == [
        trained.run.predict(second).text,
        trained.run.predict(first).text,
        trained.run.predict(str(tmp_path / "long.wav")).text,
        None,
    ]
    assert "expected seconds as 'offset' and 'duration'" in captured.err


def test_scores_on_the_command_line(trained, capsys, monkeypatch, tmp_path):
    """Of lines with a tab, and of manifests, whose paths are relative to them."""
    expected = [item.log_prob for item in trained.run.score([(path, "ab") for path in trained.wavs[:2]])]
    impossible = "ab" * 30
    set_stdin(monkeypatch, f"{trained.wavs[0]}\tab\n{trained.wavs[0]}\t{impossible}\nmissing.wav\tab\n \tab\n".encode())
    assert main(["score", str(trained.out), "--json"]) == 3
    lines = [json.loads(line) for line in capsys.readouterr().out.split("\n")[:-1]]
    assert [line.get("error") for line in lines[2:]] == ["missing.wav: file not found", "no path"]
    assert lines[0]["log_prob"] == pytest.approx(expected[0]) and lines[1]["log_prob"] is None
    rows = [f"wav/test{number}.wav" for number in range(2)]
    (trained.directory / "scored.tsv").write_text("path\ttext\n" + "".join(f"{row}\tab\n" for row in rows))
    (trained.directory / "scored.csv").write_text("".join(f"{row},ab\n" for row in rows))
    (trained.directory / "scored.jsonl").write_text("".join(json.dumps({"wav": row, "sentence": "ab"}) + "\n" for row in rows))
    monkeypatch.chdir(tmp_path)
    for name in ("scored.tsv", "scored.csv", "scored.jsonl"):
        assert main(["score", str(trained.out), "--input", str(trained.directory / name), "--json"]) == 0
        lines = [json.loads(line) for line in capsys.readouterr().out.split("\n")[:-1]]
        assert [line["log_prob"] for line in lines] == pytest.approx(expected)
    part = trained.directory / "part.jsonl"
    part.write_text(json.dumps({"path": rows[0], "text": "ab", "offset": 0.1, "duration": 0.1}) + "\n")
    assert main(["score", str(trained.out), "--input", str(part)]) == 3
    assert "parts of recordings are not scored" in capsys.readouterr().err
    config = SpeechDataConfig.model_validate({"train": "x.tsv", "source_column": 1, "target_column": "text"})
    with pytest.raises(DataError, match="one column has a name, the other an index"):
        _input_columns(config, ["path", "text"], targets=True)


def test_a_recording_is_not_a_list_of_files(trained, capsys):
    code, message = expect_error(capsys, "predict", str(trained.out), "--input", trained.wavs[0])
    assert code == 3 and message.endswith("test0.wav: a file to predict from, not a list of files; pass it without --input")


def test_bad_inputs_have_one_line_each(trained, capsys, monkeypatch, tmp_path):
    (tmp_path / "empty.wav").write_bytes(b"")
    (tmp_path / "text.wav").write_text("no sound\n" * 100)
    bad = [str(tmp_path / "missing.wav"), str(tmp_path / "empty.wav"), str(tmp_path / "text.wav"), str(tmp_path), "a" * 5000]
    set_stdin(monkeypatch, "\n".join([trained.wavs[0], *bad]).encode() + b"\n")
    assert main(["predict", str(trained.out)]) == 3
    captured = capsys.readouterr()
    assert captured.out.count("\n") == 6 and captured.out.split("\n")[1:6] == [""] * 5
    for problem in ("file not found", "empty file", "cannot be read as a sound", "not a file"):
        assert captured.err.count(problem) == 1
    assert "Traceback" not in captured.err and len(captured.err) < 3000


@pytest.mark.parametrize(
    "setting, code, message",
    [
        ("data.sample_rat=8000", 2, "sample_rate"),
        ("data.sample_rate=12345", 2, "data.sample_rate"),
        ("data.max_seconds=0", 2, "data.max_seconds"),
        ("data.source_column=0", 2, "data.source_column"),
        ("data.target_column=[]", 2, "data.target_column"),
        ("data.target_column='words'", 3, "no column 'words'"),
        ("data.train='missing.tsv'", 3, "file not found"),
        ("data.train='wav/train0.wav'", 3, "not a manifest"),
        ("data.train='wav'", 3, "no wav.scp"),
        ("data.root='nowhere'", 3, "file not found"),
        ("data.root='no.zip'", 3, "file not found"),
        ("model.arch='conformr'", 2, "conformer"),
        ("model.ctc_weight=2", 2, "model.ctc_weight"),
        ("model.encoder.subsampling=3", 2, "model.encoder.subsampling"),
    ],
)
def test_mistakes_in_a_run_file_are_one_line(tmp_path, monkeypatch, capsys, setting, code, message):
    make_recordings(tmp_path, 4)
    toml(tmp_path)
    monkeypatch.chdir(tmp_path)
    actual, text = expect_error(capsys, "train", "run.toml", "--quiet", "--set", setting)
    assert actual == code and message in text and len(text) < 400


def test_recordings_in_an_archive(tmp_path, trained):
    manifest = make_recordings(tmp_path, 4)
    with zipfile.ZipFile(tmp_path / "wav.zip", "w") as archive:
        for path in sorted((tmp_path / "wav").iterdir()):
            archive.write(path, f"wav/{path.name}")
            path.unlink()
    values = speech_run_file(manifest, data__root=str(tmp_path / "wav.zip"), data__valid=None, train__max_steps=1)
    train_here(values, tmp_path / "run")
    # names below the root of the training data, and paths into an archive, are found by predictions as well
    run = ["predict", str(tmp_path / "run")]
    assert main([*run, "wav/train0.wav"]) == 0 and main([*run, str(tmp_path / "wav.zip" / "wav" / "train0.wav")]) == 0
    assert main([*run, "--input", str(manifest)]) == 0
    (tmp_path / "paths.tsv").write_text("path\ttext\nwav.zip/wav/train0.wav\tab\n")
    values = speech_run_file(tmp_path / "paths.tsv", data__valid=None, train__max_steps=1)
    train_here(values, tmp_path / "run2")


# ---- data in memory


def test_training_data_in_memory(tmp_path, trained):
    """Waveforms, waveforms with their rate, and paths, as tuples, dicts or columns."""
    values, spoken = speech_run_file("x"), texts(6)
    for option in ("train", "valid"):
        del values["data"][option]
    data: dict[str, Any] = {
        "train": [(say(text), text) for text in spoken],
        "valid": {"path": [trained.wavs[0], (say("ab", rate=8000), 8000)], "text": ["a", "b"], "speaker": ["x", "y"]},
    }
    run = weft.train(values, data=data, output_dir=tmp_path / "run")
    assert sorted(path.name for path in (tmp_path / "run" / "inputs").iterdir()) == [
        "train.jsonl", "train.zip", "valid.jsonl", "valid.zip",
    ]  # fmt: skip
    lines = [json.loads(line) for line in (tmp_path / "run" / "inputs" / "valid.jsonl").read_text().splitlines()]
    assert [line["path"] for line in lines] == [trained.wavs[0], "valid.zip/000001"] and lines[1]["speaker"] == "y"
    assert {"wer"} <= set(run.evaluate([(say("ab"), "ab"), (trained.wavs[0], "a")]).scores)
    assert run.predict({"path": [say("ab")]})[0].text == run.predict([say("ab")])[0].text
    weft.train(values, data=data, output_dir=tmp_path / "run")
    with pytest.raises(UsageError, match="differs from the data that"):
        weft.train(values, data={**data, "train": [(say("dd"), text) for text in spoken]}, output_dir=tmp_path / "run")
    same = train_here(speech_run_file(_written(tmp_path, spoken), data__valid=None), tmp_path / "files")
    memory = weft.train(values, data={"train": data["train"]}, output_dir=tmp_path / "memory")
    for name, weight in weft.load(same.path).model.state_dict().items():
        assert torch.equal(weight, memory.model.state_dict()[name]), name


def _written(directory: Path, spoken: list[str]) -> Path:
    """The same recordings as files."""
    for number, text in enumerate(spoken):
        write_wav(directory / f"{number}.wav", say(text), RATE)
    path = directory / "same.tsv"
    path.write_text("path\ttext\n" + "".join(f"{number}.wav\t{text}\n" for number, text in enumerate(spoken)))
    return path


@pytest.mark.parametrize(
    "record, problem",
    [
        ((3, "x"), "expected a path, an array of samples"),
        ((np.zeros(9),), "expected a dict or a tuple"),
        ((np.full(4000, np.inf), "x"), "not finite"),
        ((say("a"), 5), "expected a string"),
        ({"path": "a.wav"}, "no key 'text'"),
    ],
)
def test_bad_records_in_memory(tmp_path, record, problem):
    values = speech_run_file("x")
    for option in ("train", "valid"):
        del values["data"][option]
    with pytest.raises(DataError) as caught:
        weft.train(values, data={"train": [(say("ab"), "ab"), record]}, output_dir=tmp_path / "run")
    assert problem in str(caught.value) and io.StringIO(str(caught.value)).read().count("\n") == 0
    assert not (tmp_path / "run").exists()


def test_records_in_memory_with_a_root(tmp_path, trained):
    """Paths are relative to it; waveforms cannot be."""
    config = SpeechDataConfig.model_validate({"train": "x.tsv", "root": str(trained.directory)})
    assert config.file_of("wav/test0.wav", "record 1") == "wav/test0.wav"
    with pytest.raises(DataError, match=re.escape("expected a path, because data.root is set")):
        config.file_of(say("a"), "record 1")
    with pytest.raises(DataError, match="expected the path of a file, got int"):
        MediaDataConfig.model_validate({"train": "x.tsv"}).file_of(3, "record 1")
