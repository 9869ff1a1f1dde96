"""`weft demo speech` with few voices and small models, and the synthesizer."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

from weft.cli import demo_speech
from weft.cli.formant_synthesis import PARTS, PHONES, RATE, WORDS, Phone, Speaker, speak, speaker
from weft.cli.formant_synthesis import _noise as noise_of
from weft.cli.formant_synthesis import _tracks as tracks_of
from weft.cli.formant_synthesis import _voice as voice_of
from weft.cli.main import main
from weft.data.manifest import ManifestFormat
from weft.media.audio import read_audio
from weft.media.files import MediaFile
from weft.text.reading import FileSummary

pytestmark = pytest.mark.usefixtures("restore_openmp_env")
WHO = Speaker("a", pitch=100.0, tract=1.0, rate=1.0, breath=0.0)


def spectrum(sound: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Frequencies and amplitudes."""
    return np.fft.rfftfreq(len(sound), 1 / RATE), np.abs(np.fft.rfft(sound * np.hanning(len(sound))))


# ---- the synthesizer


def test_all_words_can_be_said():
    names = {part for phones in WORDS.values() for name in phones.split() for part in PARTS.get(name, name).split()}
    assert names <= set(PHONES)
    rng = np.random.default_rng(0)
    for word in WORDS:
        sound = speak([word], WHO, rng)
        assert sound.dtype == np.float32 and np.isfinite(sound).all() and 0.2 <= np.abs(sound).max() <= 0.8
        assert 0.3 < len(sound) / RATE < 1.6


def test_the_same_seed_is_the_same_sound():
    first, second = (
        speak(["two", "six"], speaker("b", rng), rng) for rng in (np.random.default_rng(7), np.random.default_rng(7))
    )
    assert np.array_equal(first, second)


def test_voice_has_its_pitch_and_its_formants():
    sounds = []
    for second in (1100.0, 1900.0):
        rng = np.random.default_rng(1)
        tracks = tracks_of([Phone((500, second, 2600), 0.6, voice=1.0)], WHO, rng)
        sounds.append(spectrum(voice_of(tracks, WHO, rng)))
    (frequencies, back), (_, front) = sounds
    between = back[(frequencies > 20) & (frequencies < 60)].max()
    assert back[(frequencies > 80) & (frequencies < 120)].max() > 20 * between  # the pitch falls from 110 to 85 Hz
    low, high = (frequencies > 950) & (frequencies < 1250), (frequencies > 1700) & (frequencies < 2100)
    assert back[low].mean() > 3 * front[low].mean() and front[high].mean() > 3 * back[high].mean()


def test_fricatives_are_noise_in_their_band():
    rng = np.random.default_rng(2)
    frequencies, amplitudes = spectrum(noise_of(tracks_of([PHONES["S"]._replace(seconds=0.6)], WHO, rng), WHO, rng))
    assert amplitudes[frequencies > 3400].mean() > 4 * amplitudes[frequencies < 2000].mean()


def test_noise_has_the_requested_level():
    quiet, loud = (speak(["seven"], WHO, np.random.default_rng(3), noise=(level, level)) for level in (40.0, 0.0))
    assert len(quiet) == len(loud)
    end = slice(-RATE // 10, None)  # silence after the word
    assert np.square(loud[end]).mean() / np.square(loud).mean() > 20 * np.square(quiet[end]).mean() / np.square(quiet).mean()


def test_speakers_differ():
    rng = np.random.default_rng(4)
    speakers = [speaker(str(number), rng) for number in range(50)]
    pitches, tracts = np.array([who.pitch for who in speakers]), np.array([who.tract for who in speakers])
    assert pitches.min() < 110 and pitches.max() > 200
    assert np.corrcoef(pitches, tracts)[0, 1] > 0.8


# ---- the demo


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A directory in which the demo was run once, with few utterances and steps."""
    directory = tmp_path_factory.mktemp("demo")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("OMP_WAIT_POLICY", "PASSIVE")
        shrink(patch)
        patch.chdir(directory)
        assert main(["demo", "speech", "--quiet"]) == 0
    return directory / "runs/demo/speech"


def shrink(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(demo_speech, "SPLITS", {"train": (2, 3), "valid": (1, 2), "test": (2, 2)})
    train = {"max_steps": 2, "batch_tokens": 256, "num_validations": 1}
    patch.setattr(demo_speech, "COMMON", {**demo_speech.COMMON, "train": train})
    models = {
        name: {"model": {**values["model"], "hidden_size": 8, "num_mels": 8}} for name, values in demo_speech.MODELS.items()
    }
    patch.setattr(demo_speech, "MODELS", models)


def test_the_recordings_of_a_speaker_are_one_file_that_the_manifest_cuts(place):
    for split, speakers, count in (("train", 2, 3), ("valid", 1, 2), ("test", 2, 2)):
        records = list(ManifestFormat().read((place / f"{split}.jsonl",), FileSummary((), "utf-8")))
        assert len(records) == speakers * count and len({record.group for record in records}) == speakers
        assert all(set(record.texts[0].split()) <= set(WORDS) for record in records)
    parts = [read_audio(record.media).samples for record in records if record.group == "test-01"]
    whole = read_audio(MediaFile(place / "audio/test-01.wav")).samples
    assert np.array_equal(np.concatenate(parts), whole)
    example = read_audio(MediaFile(place / "example.wav")).samples
    assert any(np.array_equal(example, part) for part in parts)
    assert (place / "example.txt").read_text().strip() in {record.texts[0] for record in records}


def test_the_demo_reports_both_models(place, monkeypatch, capsys):
    shrink(monkeypatch)
    monkeypatch.chdir(place.parents[2])
    weights = place / "forward/model.safetensors"
    before = weights.stat().st_mtime_ns
    assert main(["demo", "speech", "--quiet", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [(row["model"], row["can_stream"]) for row in data["models"]] == [("forward", True), ("bidirectional", False)]
    assert all(row["wer"] > 0 and row["cer"] > 0 and row["num_parameters"] > 1000 for row in data["models"])
    for picture in data["example"]["pictures"].values():
        ET.fromstring(Path(picture).read_text())
    assert weights.stat().st_mtime_ns == before  # trained once
    assert "Which number was said?" in (place / "report.html").read_text()


def test_the_demo_prints_a_table_and_what_to_do_next(place, monkeypatch, capsys):
    shrink(monkeypatch)
    monkeypatch.chdir(place.parents[2])
    assert main(["demo", "speech"]) == 0
    out, err = capsys.readouterr()
    lines = out.split("\n")
    assert lines[1].split("  ")[0] == "" and "word error rate" in lines[1] and "streams" in lines[1]
    assert [line[3:].split()[0] for line in lines[2:4]] == ["forward", "bidirectional"]
    assert " * best model on 4 utterances of 2 speakers that no model has heard" in lines
    assert "--stream < runs/demo/speech/example.wav" in err
