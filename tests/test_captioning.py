"""Captioning of images, clips and features: reading, training, prediction, evaluation."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from caption_runs import caption, run_values, square, trained, write_clips, write_features, write_images
from media_files import animation, clip, encoded, problem_of
from PIL import Image
from small_runs import SilentCallback

import weft
from weft.cli.main import main
from weft.errors import ConfigError, DataError, DivergedError, UsageError
from weft.media.files import MediaFile
from weft.runs.resolve import resolve
from weft.tasks.captioning.data import CaptionReader, FrameOptions, detect_media
from weft.tasks.registry import find_task

IMAGES = {"train": "images.tsv", "root": "images.zip", "valid": "images.tsv", "test": "images.tsv"}
CLIPS = {"train": "clips.tsv", "valid": "clips.tsv", "test": "clips.tsv"}
FEATURES = {"train": "features.tsv", "valid": "features.tsv", "test": "features.tsv"}
PIXELS = CaptionReader(FrameOptions("image", (8, 10), 3))
CLIP = CaptionReader(FrameOptions("video", (8, 10), 1, max_frames=4))
ARRAYS = CaptionReader(FrameOptions("features", num_features=5, max_frames=3))


@pytest.fixture
def command(capsys):
    """Calls a command; returns its exit code, output and messages."""

    def call(*words):
        code = main([str(word) for word in words])
        captured = capsys.readouterr()
        return SimpleNamespace(code=code, out=captured.out, err=captured.err)

    return call


# ---- reading


def test_the_kind_of_a_file_is_detected_from_its_content(tmp_path):
    contents = {
        "photo.jpg": encoded(square("red"), "JPEG"),
        "still.gif": encoded(square("red"), "GIF"),
        "moving.gif": animation("GIF"),
        "clip.mp4": clip("mp4", "mpeg4"),
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    np.save(tmp_path / "array.npy", np.zeros((2, 3)))
    (tmp_path / "frames").mkdir()
    kinds = {name: detect_media(MediaFile(tmp_path / name)) for name in [*contents, "array.npy", "frames"]}
    assert kinds == {
        "photo.jpg": "image",
        "still.gif": "image",
        "moving.gif": "video",
        "clip.mp4": "video",
        "array.npy": "features",
        "frames": "video",
    }


def test_detected_options_are_stored_and_those_of_the_run_file_win(tmp_path):
    write_images(tmp_path)
    values = run_values(IMAGES)
    data = resolve(values, base=tmp_path).data
    assert (data.media, data.image_size, data.channels, data.rows()) == ("image", [16, 16], 3, "images")
    assert Path(data.root).is_absolute()
    stored = resolve({**values, "data": {**IMAGES, "image_size": 12, "channels": 1}}, base=tmp_path).data.frames()
    assert (stored.size, stored.shape.pixels) == ((12, 12), (12, 12, 1))
    write_clips(tmp_path)
    clips = resolve({**values, "data": CLIPS}, base=tmp_path).data
    assert (clips.media, clips.image_size, clips.frames().shape.is_clip) == ("video", [16, 16], True)
    write_features(tmp_path)
    features = resolve({**values, "data": FEATURES}, base=tmp_path).data
    assert (features.media, features.num_features, features.reader().dtype) == ("features", 5, "<f4")


def test_large_images_are_reduced_by_default(tmp_path):
    (tmp_path / "large.png").write_bytes(encoded(Image.new("RGB", (300, 100)), "PNG"))
    (tmp_path / "large.tsv").write_text("large.png\ta picture\n")
    data = resolve(run_values({"train": "large.tsv"}), base=tmp_path).data
    assert data.image_size == [100, 128]


def test_clips_give_their_own_size(tmp_path):
    (tmp_path / "a.mp4").write_bytes(clip("mp4", "mpeg4"))
    (tmp_path / "clips.tsv").write_text("a.mp4\ta clip\n")
    data = resolve(run_values({"train": "clips.tsv", "max_frames": 5}), base=tmp_path).data
    assert (data.media, data.image_size) == ("video", [32, 48])
    assert data.reader().read(MediaFile(tmp_path / "a.mp4")).shape == (5, 32 * 48 * 3)


def test_data_that_cannot_be_read_is_reported_when_it_is_used(tmp_path):
    (tmp_path / "list.tsv").write_text("missing.png\ta picture\n")
    data = resolve(run_values({"train": "list.tsv"}), base=tmp_path).data
    assert data.media is None
    assert problem_of(data.reader) == "list.tsv:1: " + f"{tmp_path}/missing.png: file not found"
    with pytest.raises(ConfigError, match=r"data.image_size: expected \[height, width\] or one number"):
        resolve(run_values({"train": "list.tsv", "image_size": [1, 2, 3]}), base=tmp_path)


def test_the_first_file_that_can_be_read_decides(tmp_path):
    write_images(tmp_path)
    (tmp_path / "images.tsv").write_text("path\tcaption\nmissing.png\ta\n1.png\tb\n")
    assert resolve(run_values(IMAGES), base=tmp_path).data.image_size == [17, 17]


def test_inputs_in_memory_equal_files(tmp_path):
    image = square("blue", 12)
    (tmp_path / "a.png").write_bytes(encoded(image, "PNG"))
    frames = PIXELS.read(MediaFile(tmp_path / "a.png"))
    assert frames.dtype == np.uint8 and frames.shape == (1, 8 * 10 * 3)
    for value in (image, Image.fromarray(image), image / np.float32(255)):
        np.testing.assert_array_equal(PIXELS.from_memory(value), frames)
    moving = CLIP.from_memory(np.stack([image] * 6))
    assert moving.shape == (4, 8 * 10)
    np.testing.assert_array_equal(CLIP.from_memory([image, image])[0], moving[0])
    features = np.arange(10.0).reshape(2, 5)
    np.save(tmp_path / "a.npy", features)
    np.testing.assert_array_equal(ARRAYS.from_memory(features), ARRAYS.read(MediaFile(tmp_path / "a.npy")))
    assert ARRAYS.from_memory(features[0]).shape == (1, 5)


def test_wrong_inputs_are_refused_with_a_reason(tmp_path):
    (tmp_path / "a.mp4").write_bytes(clip("mp4", "mpeg4"))
    (tmp_path / "empty").mkdir()
    np.save(tmp_path / "wide.npy", np.zeros((2, 6)))
    np.save(tmp_path / "long.npy", np.zeros((4, 5)))
    files = {name: MediaFile(tmp_path / name) for name in ("a.mp4", "empty", "wide.npy", "long.npy")}
    assert "is a clip, but this run reads images; set data.media" in problem_of(lambda: PIXELS.read(files["a.mp4"]))
    assert "is a clip, but this run reads images" in problem_of(lambda: PIXELS.read(files["empty"]))
    assert "no images in this directory" in problem_of(lambda: CLIP.read(files["empty"]))
    assert "6 features per position, but this run reads 5" in problem_of(lambda: ARRAYS.read(files["wide.npy"]))
    assert "4 positions are more than data.max_frames (3)" in problem_of(lambda: ARRAYS.read(files["long.npy"]))
    assert "2 frames, but this run reads images" in problem_of(lambda: PIXELS.from_memory(np.zeros((2, 8, 8, 3), np.uint8)))
    assert "no frames" in problem_of(lambda: CLIP.from_memory([]))
    assert "expected a Pillow image or a NumPy array" in problem_of(lambda: PIXELS.from_memory(3))
    shape = "expected a path, or an array of shape (positions, features)"
    assert shape in problem_of(lambda: ARRAYS.from_memory("x"[:0] or None))
    assert "NaN or infinite" in problem_of(lambda: ARRAYS.from_memory(np.full((1, 5), np.nan)))


# ---- whole runs


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A tiny captioner of images, and its directory."""
    directory = write_images(tmp_path_factory.mktemp("captions"))
    callback = SilentCallback()
    run = trained(run_values(IMAGES), directory, callback)
    assert "files are read as images: 16 x 16 pixels, 3 channels per frame" in callback.notes
    return run


def test_a_path_an_image_and_an_array_are_one_input(run, tmp_path):
    (tmp_path / "a.png").write_bytes(encoded(square("red"), "PNG"))
    path = tmp_path / "a.png"
    texts = {run.predict(value).text for value in (path, str(path), MediaFile(path), square("red"), Image.open(path))}
    assert len(texts) == 1
    assert len(run.predict([path, square("blue")])) == 2
    bad = run.try_predict([tmp_path / "missing.png", path])
    assert "file not found" in bad[0].reason and bad[1].text in texts
    with pytest.raises(DataError, match="file not found"):
        run.predict(tmp_path / "missing.png")


def test_evaluation_has_all_metrics_and_repeats_itself(run):
    scores = run.evaluate(beam_size=2)
    names = ["cider_d", "cider", "bleu_4", "bleu_3", "bleu_2", "bleu_1", "word_f1", "exact_match", "wer"]
    assert list(scores.scores) == names and len(scores.items.keys) == 12
    assert str(scores) == str(run.evaluate(beam_size=2))
    two = weft.ensemble([run.directory.path] * 2).evaluate(beam_size=2)
    assert two["wer"].value == scores["wer"].value


def test_scores_of_texts_are_probabilities(run):
    (score,) = run.score([(square("red"), "a red square")])
    assert score.tokens == ["a", "red", "square", "</s>"] and score.log_prob < 0


def test_options_that_do_not_fit_are_refused(run):
    with pytest.raises(UsageError, match="layer: requires `return_alignments`"):
        run.predict(square("red"), layer=1)
    with pytest.raises(UsageError, match="numbers: expected one per input"):
        run.predict(square("red"), numbers=[1, 2])
    with pytest.raises(UsageError, match="not available for several models"):
        weft.ensemble([run.directory.path] * 2).predict(square("red"), return_alignments=True)
    for options in ({"layer": 9}, {"head": 9}):  # also if the output is empty
        with pytest.raises(UsageError, match="9"):
            run.predict(square("red"), return_alignments=True, max_new_tokens=1, **options)


def test_command_line_opens_paths_members_and_manifests(run, tmp_path, monkeypatch, command):
    directory = run.directory.path
    (tmp_path / "a.png").write_bytes(encoded(square("red"), "PNG"))
    monkeypatch.chdir(tmp_path)
    alone = command("predict", directory, "a.png", "--save-alignments", "out", "--min-new-tokens", "2")
    assert alone.code == 0 and sorted(path.suffix for path in (tmp_path / "out").iterdir()) == [".json", ".svg"]
    content = json.loads(next((tmp_path / "out").glob("*.json")).read_text())
    assert content["text"] == alone.out.strip() and np.sum(content["weights"][0]) == pytest.approx(1, abs=0.01)
    member = command("predict", directory, "0.png", "--json")  # in the archive of the training data
    assert member.code == 0 and json.loads(member.out)["source"] == "0.png"
    assert command("predict", directory, "a.png", "--n-best", "2", "--beam-size", "2").out.count("\n") == 2
    (tmp_path / "list.tsv").write_text("path\tcaption\na.png\tx\nmissing.png\ty\n")
    listed = command("predict", directory, "--input", "list.tsv")
    (tmp_path / "members.tsv").write_text("path\tcaption\n0.png\tx\n")
    assert command("predict", directory, "--input", "members.tsv").code == 0
    assert listed.code != 0 and "missing.png" in listed.err and listed.out.startswith("path\tcaption\tprediction\na.png\tx\t")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arch", "model"),
    [
        ("transformer", {"num_layers": 1, "num_heads": 2}),
        ("vit", {"num_layers": 1, "encoder": {"num_layers": 1, "patch_size": 8}}),
        ("show-and-tell", {}),
        ("s2vt", {"num_layers": 1}),
        ("lipnet", {"num_layers": 1}),
        ("gru", {"ctc_weight": 0.3}),
    ],
)
def test_architectures_train_on_clips(arch, model, tmp_path):
    write_clips(tmp_path)
    if arch == "vit":
        values = run_values(CLIPS, arch)
        values["model"] = {"arch": arch, "hidden_size": 16, **model}
    else:
        values = run_values(CLIPS, arch, model=model)
    run = trained(values, tmp_path)
    assert run.evaluate(beam_size=1)["wer"].value >= 0
    assert run.predict([tmp_path / "clip0"])[0].text == run.predict(np.stack([square("red")] * 3)).text
    if arch != "show-and-tell":
        return
    with pytest.raises(UsageError, match="the model has no cross-attention"):
        run.predict(square("red"), return_alignments=True)


def test_features_are_projected(tmp_path):
    write_features(tmp_path)
    run = trained(run_values(FEATURES, "lstm", model={"encoder": {}}), tmp_path)
    prediction = run.predict(tmp_path / "0.npy", return_alignments=True, min_new_tokens=2)
    assert prediction.alignment.weights.shape[1:] == (2, 1, 1) and "<svg" in prediction.alignment.to_svg("a")


def test_several_references_of_a_file(tmp_path):
    write_images(tmp_path, 6)
    lines = (tmp_path / "images.tsv").read_text().split("\n")[1:-1]
    rows = [{"path": line.split("\t")[0], "caption": [line.split("\t")[1], "a shape"]} for line in lines]
    (tmp_path / "images.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*rows, {**rows[0], "caption": "x"}]))
    data = {split: "images.jsonl" for split in ("train", "valid", "test")}
    scores = trained(run_values({**data, "root": "images.zip"}), tmp_path).evaluate(beam_size=1)
    assert len(scores.items.keys) == 6  # a file is evaluated once
    assert "nrefs:var" in scores["bleu_4"].signature


def test_coco_captions(tmp_path):
    write_images(tmp_path, 6)
    images = [{"id": index, "file_name": f"{index}.png"} for index in range(6)]
    captions = [{"image_id": index % 6, "caption": f"picture {index}"} for index in range(12)]
    (tmp_path / "captions.json").write_text(json.dumps({"images": images, "annotations": captions}))
    run = trained(run_values({"train": "captions.json", "root": "images.zip", "test": "captions.json"}), tmp_path)
    assert len(run.evaluate(beam_size=1).items.keys) == 6


# ---- damaged data


def test_check_opens_all_files(tmp_path, monkeypatch, command):
    write_images(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.png").write_bytes(encoded(square("red"), "PNG")[:60])
    rows = "\n".join(["path\tcaption", "images.zip/0.png\ta", "broken.png\tb", "missing.png\tc", "images.zip/1.png\td"])
    (tmp_path / "list.tsv").write_text(rows + "\n")
    data = '[data]\ntrain = "list.tsv"\n'
    (tmp_path / "run.toml").write_text('task = "captioning"\n' + data)
    result = command("check", "run.toml")
    assert result.code != 0 and re.search(r"2 of 4 files.*cannot be used", result.out)
    with pytest.raises(DataError, match=r"list.tsv:4: .*missing.png: file not found"):
        trained(run_values({"train": "list.tsv"}), tmp_path)
    callback = SilentCallback()
    trained(run_values({"train": "list.tsv", "on_error": "skip"}), tmp_path, callback, "skipping")
    assert any("2 files were skipped" in note for note in callback.notes)


def test_texts_that_are_too_long_are_refused(tmp_path):
    write_images(tmp_path)
    (tmp_path / "long.tsv").write_text("path\tcaption\n0.png\t" + "very " * 300 + "long\n")
    with pytest.raises(DataError, match=r"text has 302 tokens, more than data.max_length \(200\)"):
        trained(run_values({**IMAGES, "train": "long.tsv"}), tmp_path)


def test_texts_without_enough_frames_for_ctc_are_left_out(tmp_path):
    write_clips(tmp_path)
    table = (tmp_path / "clips.tsv").read_text()
    (tmp_path / "clips.tsv").write_text(table.replace("\na", "\nthis is a long text a", 1) + "clip0\tone two three four five\n")
    callback = SilentCallback()
    trained(run_values(CLIPS, "lipnet", model={"num_layers": 1}), tmp_path, callback)
    problem = "1 training file is too short for CTC to write the text and skipped"
    assert any(note.startswith(problem) and note.endswith("clips.tsv:8)") for note in callback.notes)
    (tmp_path / "valid.tsv").write_text("path\tcaption\nclip0\tone two three four five\nclip1\ta red square\n")
    callback = SilentCallback()
    trained(run_values({**CLIPS, "valid": "valid.tsv"}, "lipnet", model={"num_layers": 1}), tmp_path, callback, name="valid")
    problem = "1 validation file is too short for CTC to write the text and skipped"
    assert any(note.startswith(problem) and note.endswith("valid.tsv:2)") for note in callback.notes)
    (tmp_path / "clips.tsv").write_text("path\tcaption\nclip0\tone two three four five\n")
    with pytest.raises(DataError, match="no file is long enough for its text"):
        trained({**run_values(CLIPS, "lipnet", model={"num_layers": 1}), "seed": 2}, tmp_path, name="short")


# ---- options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"front": "patches", "conv_channels": 8}, "conv_channels: not used with front 'patches'; remove it"),
        ({"front": "patches", "conv_channels": None, "per_frame": True}, "per_frame: not possible with front 'patches'"),
        ({"num_layers": 0, "layer_type": "lstm", "embedding_dim": 8}, "embedding_dim: must equal hidden_size without layers"),
    ],
)
def test_options_without_effect_are_refused(options, message, tmp_path):
    encoder = {key: value for key, value in options.items() if value is not None}
    values = run_values({"train": "images.tsv"}, "transformer", model={"encoder": encoder})
    with pytest.raises(ConfigError, match=message):
        resolve(values, base=tmp_path)


def test_every_preset_resolves_to_a_fixed_point(tmp_path):
    write_images(tmp_path)
    for arch in find_task("captioning").presets:
        config = resolve({"task": "captioning", "data": IMAGES, "model": {"arch": arch}}, base=tmp_path)
        assert resolve(config.to_dict(), base=tmp_path).to_dict() == config.to_dict()


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["transformer", "show-attend-tell", "show-and-tell", "lstm"])
def test_colors_are_learned(arch, tmp_path):
    write_images(tmp_path, 30)
    torch.manual_seed(0)
    train = {"max_steps": 150, "batch_tokens": 160, "lr": 3e-3}
    run = trained(run_values(IMAGES, arch, model={"hidden_size": 32}, train=train), tmp_path)
    assert run.evaluate(beam_size=1)["exact_match"].value == 100
    assert run.predict(square("green")).text == caption("green")


def test_a_diverged_model_of_ctc_is_not_the_best_one(tmp_path):
    write_clips(tmp_path)
    options = {"lr": 1e30, "max_steps": 1, "warmup_ratio": 0.0, "ema_decay": 0.0}
    with pytest.raises(DivergedError):
        trained(run_values(CLIPS, "lipnet", model={"num_layers": 1}, train=options), tmp_path)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"image_size": 0}, "data.image_size: expected .* from 1 to 4096, got 0"),
        ({"num_features": 5}, "data.num_features: not used, because the files are images; remove it"),
        ({"frame_rate": 5.0}, "data.frame_rate: not used, because the files are images; remove it"),
        ({"media": "video", "num_features": 5}, "data.num_features: not used with media 'video'; remove it"),
        ({"media": "features", "image_size": 5}, "data.image_size: not used with media 'features'; remove it"),
    ],
)
def test_options_that_files_do_not_have_are_refused(data, message, tmp_path):
    write_images(tmp_path)
    with pytest.raises(ConfigError, match=message):
        resolve(run_values({"train": "images.tsv", "root": "images.zip", **data}), base=tmp_path)


def test_empty_texts_are_refused(tmp_path):
    write_features(tmp_path)
    rows = [f"{index}.npy\t" for index in range(6)]
    (tmp_path / "empty.tsv").write_text("\n".join(["path\tcaption", *rows]) + "\n")
    with pytest.raises(DataError, match="all texts are empty; check the column of the texts"):
        trained(run_values({"train": "empty.tsv"}, model={"max_shift": 0, "encoder": {}}), tmp_path)


def test_a_text_that_is_longer_than_the_positions_is_not_scored(tmp_path):
    write_images(tmp_path)
    data = {"train": "images.tsv", "root": "images.zip", "max_length": 8}
    model = {"position_encoding": "learned", "num_heads": 2, "num_layers": 1, "max_shift": 0}
    run = trained(run_values(data, "transformer", model=model), tmp_path)
    fits, long = run.try_score([(square("red"), "a " * 7), (square("red"), "a " * 8)])
    assert len(fits.tokens) == 8 and "9 target tokens exceed the model's limit of 8; shorten it" in str(long.reason)
