"""Captioners that are trained on images, clips and features in memory."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import torch
from caption_runs import COLORS, caption, run_values, square, trained, write_features
from media_files import encoded
from PIL import Image

import weft
from weft.errors import DataError
from weft.media.files import MediaFile
from weft.tasks.captioning.data import CaptionDataConfig
from weft.tasks.captioning.reader import CaptionReader, FrameOptions


def weights(run):
    return run.model.state_dict()


def same(first, second):
    assert all(torch.equal(value, weights(second)[name]) for name, value in weights(first).items())


def test_images_in_memory_train_the_same_model_as_files(tmp_path):
    """Arrays, Pillow images and paths, as tuples, dicts or columns."""
    colors = [list(COLORS)[index % 3] for index in range(6)]
    images = [square(color, 16 + index % 2) for index, color in enumerate(colors)]
    for index, image in enumerate(images):
        (tmp_path / f"{index}.png").write_bytes(encoded(image, "PNG"))
    (tmp_path / "images.tsv").write_text("".join(f"{index}.png\t{caption(color)}\n" for index, color in enumerate(colors)))
    values = run_values({"train": "images.tsv", "valid": "images.tsv"})
    files = trained(values, tmp_path)
    records = [(image, caption(color)) for image, color in zip(images, colors, strict=True)]
    valid = {
        "path": [Image.fromarray(images[0]), *images[1:5], tmp_path / "5.png"],
        "text": [caption(color) for color in colors],
    }
    memory = weft.train({**values, "data": {}}, data={"train": records, "valid": valid}, output_dir=tmp_path / "memory")
    same(files, memory)
    assert memory.config.data.image_size == files.config.data.image_size == [16, 16]
    lines = [json.loads(line) for line in (tmp_path / "memory" / "inputs" / "valid.jsonl").read_text().split("\n")[:-1]]
    assert lines[-1]["path"] == str(tmp_path / "5.png") and lines[0]["path"] == "valid.zip/000001"
    assert memory.evaluate(records, beam_size=1)["wer"].value == files.evaluate(beam_size=1)["wer"].value
    assert memory.predict({"path": [images[0]]})[0].text == files.predict(tmp_path / "0.png").text


def test_clips_in_memory_train_the_same_model_as_files(tmp_path):
    records = []
    for index, color in enumerate(COLORS):
        clip = np.stack([square(color)] * 2 + [square("red")] * (1 + index))  # equal frames must not be merged
        np.save(tmp_path / f"{index}.npy", clip)
        records.append(([Image.fromarray(frame) for frame in clip] if index else clip, caption(color)))
    (tmp_path / "clips.tsv").write_text("".join(f"{index}.npy\t{text}\n" for index, (_, text) in enumerate(records)))
    values = run_values({"train": "clips.tsv"}, "lstm")
    files = trained(values, tmp_path)
    memory = weft.train({**values, "data": {}}, data={"train": records}, output_dir=tmp_path / "memory")
    same(files, memory)
    assert (memory.config.data.media, memory.config.data.image_size) == ("video", [16, 16])
    assert len(memory.predictor.read_or_raise(tmp_path / "2.npy")[0]) == 5


def test_features_in_memory_train_the_same_model_as_files(tmp_path):
    write_features(tmp_path)
    values = run_values({"train": "features.tsv", "media": "features"}, "lstm", model={"encoder": {}})
    files = trained(values, tmp_path)
    records = [(np.load(tmp_path / f"{index}.npy"), caption(list(COLORS)[index % 3])) for index in range(6)]
    memory = weft.train({**values, "data": {"media": "features"}}, data={"train": records}, output_dir=tmp_path / "memory")
    same(files, memory)


@pytest.mark.parametrize("channels", [1, 3])
def test_any_image_in_memory_has_the_frames_of_its_file(channels, tmp_path):
    """Shades of gray, transparency and orientation survive the way through a file."""
    rng = np.random.default_rng(0)
    rgba = Image.fromarray(rng.integers(0, 255, (9, 7, 4), dtype=np.uint8))
    turned = Image.fromarray(rng.integers(0, 255, (9, 7, 3), dtype=np.uint8))
    turned.getexif()[0x0112] = 6
    reader = CaptionReader(FrameOptions("image", (8, 10), channels))
    values = [rgba, turned, rgba.convert("L"), rgba.convert("P"), rng.random((9, 7)), rng.random((9, 7, 3)).astype(np.float32)]
    config = CaptionDataConfig.model_validate({"train": "x.tsv", "media": "image"})
    for number, value in enumerate(values):
        (tmp_path / str(number)).write_bytes(config.file_of(value, "record 1"))
        np.testing.assert_array_equal(reader.read(MediaFile(tmp_path / str(number))), reader.from_memory(value))


@pytest.mark.parametrize(
    ("value", "options", "problem"),
    [
        (square("red"), {"root": "x"}, "record 1: expected a path, because data.root is set; remove data.root"),
        (
            np.zeros((3, 4)),
            {},
            'record 1: an array (T, F) of features or an image of shades of gray; set data.media to "features" or "image"',
        ),
        (np.zeros((2, 3, 4)), {"media": "features"}, "record 1: expected a path, or an array of shape (positions, features)"),
        (3, {}, "record 1: expected a Pillow image or a NumPy array, got int"),
        ([], {}, "record 1: no frames"),
        ([square("red"), square("red", 8)], {}, "record 1: the frames of a clip have different sizes; resize them"),
        (np.zeros((2, 8, 8, 3), np.uint8), {"media": "image"}, "record 1: 2 frames, but this run reads images"),
    ],
)
def test_values_that_are_refused(value, options, problem):
    config = CaptionDataConfig.model_validate({"train": "x.tsv", **options})
    with pytest.raises(DataError, match=re.escape(problem)):
        config.file_of(value, "record 1")
