"""Recordings, images and frames of clips in the report of a comparison: what they contain, their limits, and that they load."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import chromium
from caption_runs import square, write_clips, write_features
from PIL import Image
from report_documents import seq2seq_document
from small_runs import train_here
from speech_runs import make_recordings, speech_run_file

from weft import files
from weft.cli.main import main
from weft.comparison import previews
from weft.comparison.results import load, save
from weft.errors import DataError, ModelError
from weft.media.audio import Audio, read_audio, to_int16, write_wav
from weft.media.data_urls import mu_law, picture_url, sound_url
from weft.media.files import MediaFile
from weft.media.video import frame_size
from weft.report.page import page
from weft.report.page_check import find_problem
from weft.tasks.asr import compare as asr
from weft.tasks.captioning import compare as captioning


def content(url: str) -> bytes:
    return base64.b64decode(url.partition(";base64,")[2])


# ---- files as addresses


def test_a_sound_is_compressed_as_by_libsndfile():
    soundfile = pytest.importorskip("soundfile")
    rng = np.random.default_rng(0)
    samples = np.concatenate([[-1.0, 1.0, 0.0, 1e-5, -1e-5], rng.uniform(-1, 1, 5000), rng.normal(0, 0.01, 5000)])
    audio, rate = soundfile.read(io.BytesIO(content(sound_url(Audio(samples.astype(np.float32), 8000)))))
    expected = io.BytesIO()
    soundfile.write(expected, to_int16(samples), 8000, format="WAV", subtype="ULAW")
    expected.seek(0)
    assert rate == 8000 and np.array_equal(audio, soundfile.read(expected)[0])
    assert np.abs(audio - samples).max() < 0.025  # 16 steps per power of two
    assert mu_law(np.array([0, -1, 32767, -32768], np.int16)).tolist() == [0xFF, 0x7F, 0x80, 0x00]


def test_a_sound_has_at_most_16_khz():
    url = sound_url(Audio(np.zeros(44_100, np.float32), 44_100))
    head = content(url)[:44]
    assert url.startswith("data:audio/wav;base64,") and int.from_bytes(head[24:28], "little") == 16_000
    assert len(content(url)) == 58 + 16_000


def test_a_picture_takes_the_smaller_format():
    flat, noise = np.zeros((40, 60, 3), np.uint8), np.random.default_rng(0).integers(0, 255, (80, 80, 3)).astype(np.uint8)
    assert picture_url(flat).startswith("data:image/png;base64,")
    assert np.array_equal(np.array(Image.open(io.BytesIO(content(picture_url(flat))))), flat)
    assert picture_url(noise).startswith("data:image/jpeg;base64,")


# ---- previews of a task


def test_a_long_recording_is_cut(tmp_path):
    write_wav(tmp_path / "long.wav", np.zeros(21 * 2000, np.float32), 2000)
    preview = asr.preview(MediaFile(tmp_path / "long.wav"))
    assert preview.kind == "audio" and preview.note == "first 20 s of 21.0 s"
    assert len(content(preview.urls[0])) == 58 + 20 * 8000
    part = asr.preview(MediaFile(tmp_path / "long.wav", start=1.0, duration=0.5))
    assert part.note == "" and len(content(part.urls[0])) == 58 + 4000


def shape(url: str) -> tuple[int, int]:
    return Image.open(io.BytesIO(content(url))).size


def test_images_clips_and_features(tmp_path):
    Image.fromarray(np.zeros((600, 300, 3), np.uint8)).save(tmp_path / "tall.png")
    exif = Image.Exif()
    exif[0x0112] = 6  # on its side
    Image.fromarray(np.zeros((30, 50, 3), np.uint8)).save(tmp_path / "turned.jpg", exif=exif)
    shapes = [shape(captioning.preview(MediaFile(tmp_path / name)).urls[0]) for name in ("tall.png", "turned.jpg")]
    assert shapes == [(100, 200), (30, 50)]
    assert frame_size(MediaFile(tmp_path / "turned.jpg")) == (50, 30)
    write_clips(tmp_path)
    clip = captioning.preview(MediaFile(tmp_path / "clip1"))
    assert clip is not None and clip.note == "4 frames of the clip" and [shape(url) for url in clip.urls] == [(16, 16)] * 4
    write_features(tmp_path)
    assert captioning.preview(MediaFile(tmp_path / "0.npy")) is None


# ---- a comparison


@pytest.fixture(scope="module")
def compared(tmp_path_factory) -> Path:
    """A comparison of a recognizer with itself: one of six recordings cannot be read for the report."""
    directory = tmp_path_factory.mktemp("previews")
    manifest = make_recordings(directory, 8)
    train_here(speech_run_file(manifest, train__max_steps=1, train__num_validations=1), directory / "run")
    test = make_recordings(directory, 6, name="test", seed=9)
    words = ["compare", str(directory / "run"), "--data", str(test), "--output-dir", str(directory / "compared"), "--quiet"]
    assert main(words) == 0
    (directory / "compared" / "comparison.json").unlink()

    def read(file: MediaFile) -> Audio:
        if file.path.name == "test2.wav":
            raise DataError(str(file), "file not found")
        return read_audio(file)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("weft.media.audio.read_audio", read)
        assert main(words) == 0  # the results are stored
    return directory / "compared"


def test_a_report_contains_the_recordings(compared):
    document = json.loads((compared / "comparison.json").read_text())
    shown = {Path(item["input"]).name: item.get("preview") for item in document["items"]}
    assert {name for name, preview in shown.items() if preview} == {f"test{number}.wav" for number in (0, 1, 3, 4, 5)}
    assert find_problem(document) == ""
    html = (compared / "report.html").read_text()
    assert "img-src data:; media-src data:" in html and 'src="http' not in html
    assert "Recordings of 5 of these 6 items are part of this page (8 bits per sample" in html
    assert "500 kB per item and 5 MB in total" in html


def test_the_size_is_limited(compared, monkeypatch):
    results = load(next((compared / "results").iterdir()))
    every = previews.make_previews(results, range(6))
    sizes = {item: sum(map(len, preview.urls)) for item, preview in every.items()}
    assert sorted(every) == [0, 1, 2, 3, 4, 5]
    monkeypatch.setattr(previews, "MAX_BYTES", max(sizes.values()) - 1)
    assert set(every) - set(previews.make_previews(results, range(6))) == {
        item for item, size in sizes.items() if size == max(sizes.values())
    }
    monkeypatch.undo()
    monkeypatch.setattr(previews, "MAX_TOTAL_BYTES", sizes[5] + sizes[4])
    assert list(previews.make_previews(results, [5, 4, 3])) == [5, 4]


@pytest.mark.parametrize("entry", [["a"], ["a", "", 0.0, "x"], [1, "", 0.0, None], ["a\0", "", 0.0, None], "a", None])
def test_stored_files_are_checked(compared, tmp_path, entry):
    results = load(next((compared / "results").iterdir()))
    save(results, tmp_path / "kept")
    about = files.read_json(tmp_path / "kept" / "results.json")
    for stored in ([entry] * 6, about["files"][:2], None):
        files.write_json(tmp_path / "kept" / "results.json", {**about, "files": stored})
        files.write_manifest(tmp_path / "kept")
        with pytest.raises(ModelError, match="invalid files"):
            load(tmp_path / "kept")


@pytest.mark.parametrize(
    ("preview", "problem"),
    [
        ({"kind": "script", "urls": []}, "items[0].preview.kind is not 'audio' or 'image'"),
        (
            {"kind": "image", "urls": ["https://example.org/a.png"]},
            "items[0].preview.urls[0] is not a data: URL of a sound or an",
        ),
        (
            {"kind": "image", "urls": ["data:image/svg+xml;base64,AAAA"]},
            "items[0].preview.urls[0] is not a data: URL of a sound",
        ),
    ],
)
def test_other_addresses_are_refused(preview, problem):
    document: Any = seq2seq_document()
    document["items"][0]["preview"] = preview
    assert find_problem(document).startswith(problem)


def test_recordings_and_images_load_in_a_browser(tmp_path):
    document: Any = seq2seq_document()
    document["items"] = document["items"][:2]
    sound = sound_url(Audio(np.zeros(4000, np.float32), 2000))
    images = [picture_url(square("red", 24)) for _ in range(3)]
    document["items"][0]["preview"] = {"kind": "audio", "urls": [sound], "note": "first 2 s"}
    document["items"][1]["preview"] = {"kind": "image", "urls": images, "note": ""}
    assert find_problem(document) == ""
    (tmp_path / "report.html").write_text(page(document), encoding="utf-8")
    with chromium() as browser:
        shown, messages = browser.new_context(offline=True).new_page(), list[str]()
        shown.on("console", lambda message: messages.append(message.text))
        shown.goto((tmp_path / "report.html").as_uri())
        # the policy of the page forbids the polling of `wait_for_function`
        loaded = "(audio) => audio.readyState > 0 || new Promise((done) => audio.addEventListener('loadedmetadata', done))"
        shown.locator("audio").evaluate(loaded)
        assert shown.locator("audio").evaluate("(audio) => audio.duration") == 2
        sizes = "[...document.querySelectorAll('.preview img')].map((image) => image.naturalWidth)"
        assert shown.evaluate(sizes) == [24, 24, 24]
        assert shown.locator(".preview figcaption").all_text_contents() == ["first 2 s"]
        assert messages == []
