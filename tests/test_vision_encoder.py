"""Captioners that read the features of a pre-trained vision encoder."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from caption_runs import run_values, square, trained, write_clips, write_images
from media_files import encoded
from PIL import Image
from safetensors.torch import load_file, save_file
from small_runs import SilentCallback
from vision_encoders import MODELS, TIMM_MODELS, write_encoder, write_timm_encoder

import weft
from weft.cli.main import main
from weft.errors import ConfigError, DataError, ModelError, WeftError
from weft.runs.resolve import resolve
from weft.tasks.captioning import vision_encoder
from weft.tasks.captioning.vision_encoder import open_encoder

PHOTO = Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 50, 3), dtype=np.uint8))
IMAGES = {"train": "images.tsv", "root": "images.zip", "valid": "images.tsv", "test": "images.tsv", "feature_encoder": "vit"}


@pytest.fixture(scope="module")
def vit(tmp_path_factory) -> Path:
    return write_encoder(tmp_path_factory.mktemp("encoders") / "vit")


def reference(directory: Path) -> np.ndarray:
    """The last tokens or cells (P, F) that transformers computes for the photo."""
    model = transformers.AutoModel.from_pretrained(directory, local_files_only=True).eval()
    processor = transformers.AutoImageProcessor.from_pretrained(directory, backend="pil")
    inputs = processor(PHOTO, return_tensors="pt")
    with torch.no_grad():
        model = model.vision_model if model.config.model_type == "clip" else model
        state = model(**inputs).last_hidden_state
    return (state.flatten(2).transpose(1, 2) if state.ndim == 4 else state)[0].numpy()


@pytest.mark.parametrize(
    "model_type",
    [pytest.param(name, marks=[] if name in ("vit", "clip", "resnet", "swin") else pytest.mark.slow) for name in MODELS],
)
def test_features_equal_those_of_transformers(model_type, tmp_path):
    encoder, content = open_encoder(str(write_encoder(tmp_path / "encoder", model_type)))
    features, expected = encoder.encode([PHOTO, PHOTO]), reference(tmp_path / "encoder")
    assert features.shape == (2, 4, 4, 16) and encoder.shape() == ((4, 4), 16) and len(content) == 64
    np.testing.assert_allclose(features[0].reshape(16, -1), expected[-16:], atol=2e-6)  # without [CLS]
    np.testing.assert_array_equal(features[0], features[1])
    assert features[0].std((0, 1)).max() > 0.01  # cells differ


@pytest.mark.parametrize("architecture", TIMM_MODELS)
def test_features_equal_those_of_timm(architecture, tmp_path):
    timm = pytest.importorskip("timm")
    encoder, _ = open_encoder(str(write_timm_encoder(tmp_path / "encoder", architecture)))
    model = timm.create_model(architecture, **TIMM_MODELS[architecture])
    model.load_state_dict(load_file(tmp_path / "encoder" / "model.safetensors"))
    transform = timm.data.create_transform((3, 32, 32), crop_pct=0.9, mean=(0.5,) * 3, std=(0.5,) * 3, interpolation="bicubic")
    with torch.no_grad():
        expected = model.eval().forward_features(transform(PHOTO)[None])[0].numpy()  # with [CLS], or a grid (h, w, F)
    features = encoder.encode([PHOTO])[0]
    assert features.shape == (4, 4, 16)
    np.testing.assert_allclose(features.reshape(16, 16), expected.reshape(-1, 16)[-16:], atol=2e-6)


def test_timm_architectures_and_options_are_those_that_it_registers(tmp_path, monkeypatch):
    class Timm:
        is_model = staticmethod(lambda name: name == "known")

    (tmp_path / "model.safetensors").write_bytes(b"")
    monkeypatch.setattr(vision_encoder, "import_extra", lambda module, package, what: Timm)
    for config, problem in (
        ({"architecture": "hf-hub:someone/model"}, "architecture: timm has no architecture 'hf-hub:someone/model'"),
        (
            {"architecture": "known", "model_args": {"checkpoint_path": "x.pth"}},
            "config.json: model_args.checkpoint_path is not supported; use class_token, depth,",
        ),
    ):
        (tmp_path / "config.json").write_text(json.dumps(config))
        with pytest.raises(ModelError, match=r"config\.json") as caught:
            open_encoder(str(tmp_path))
        assert problem in str(caught.value)


def test_batches_of_images_equal_single_images(vit, monkeypatch):
    encoder, _ = open_encoder(str(vit))
    images = [Image.fromarray(square(color)) for color in ("red", "green", "blue")]
    alone = np.concatenate([encoder.encode([image]) for image in images])
    monkeypatch.setattr(vision_encoder, "BATCH_IMAGES", 2)
    np.testing.assert_allclose(encoder.encode(images), alone, atol=1e-6)


def test_prepared_pixels_are_shown_as_they_were(vit):
    encoder, _ = open_encoder(str(vit))
    image = square("red", 32)  # of the size of the encoder
    np.testing.assert_array_equal(encoder.shown(encoder.prepare([Image.fromarray(image)]))[0], image)


# ---- directories


def test_opening_an_encoder_changes_no_random_numbers(tmp_path):
    write_encoder(tmp_path / "encoder")
    weights = load_file(tmp_path / "encoder" / "model.safetensors")
    save_file(
        {name: value for name, value in weights.items() if "pooler" not in name}, tmp_path / "encoder" / "model.safetensors"
    )
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    open_encoder(str(tmp_path / "encoder"))  # the pooler, which is not used, is drawn
    assert torch.equal(torch.rand(3), expected)


def change(path: Path, **values: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


@pytest.mark.parametrize(
    ("name", "values", "problem"),
    [
        ("config.json", {"model_type": "vti"}, "model_type: unknown vision encoder 'vti'; did you mean 'vit'?"),
        ("config.json", {"auto_map": {"AutoModel": "evil.Model"}}, "config.json: auto_map is not supported"),
        ("config.json", {"quantization_config": {"quant_method": "x"}}, "config.json: quantization_config is not supported"),
        ("config.json", {"hidden_size": 24}, "has another shape than config.json says"),
        ("config.json", {"num_hidden_layers": 2}, "is missing"),
        ("config.json", {"hidden_act": "evil"}, "cannot be loaded: "),
        (
            "preprocessor_config.json",
            {"image_processor_type": "EvilImageProcessor"},
            "image_processor_type: unknown image processor 'EvilImageProcessor'",
        ),
    ],
)
def test_directories_that_are_refused(vit, tmp_path, name, values, problem):
    shutil.copytree(vit, tmp_path / "vit")
    change(tmp_path / "vit" / name, **values)
    with pytest.raises(ModelError) as caught:
        open_encoder(str(tmp_path / "vit"))
    assert problem in str(caught.value) and "\n" not in str(caught.value)


def test_files_that_are_missing_or_unsafe(vit, tmp_path):
    for missing, problem in (
        ("config.json", "config.json is missing"),
        ("preprocessor_config.json", "preprocessor_config.json is missing"),
        ("model.safetensors", "model.safetensors is missing"),
    ):
        shutil.copytree(vit, tmp_path / missing)
        (tmp_path / missing / missing).unlink()
        with pytest.raises(ModelError, match=problem):
            open_encoder(str(tmp_path / missing))
    (tmp_path / "model.safetensors" / "pytorch_model.bin").write_bytes(b"cos\nsystem\n")
    with pytest.raises(ModelError, match=r"pytorch_model.bin is a pickle, which can run code and is not loaded; convert it to"):
        open_encoder(str(tmp_path / "model.safetensors"))
    with pytest.raises(ModelError, match=r"directory not found; set data\.feature_encoder to one with config\.json"):
        open_encoder(str(tmp_path / "nowhere"))
    (tmp_path / "config.json" / "config.json").write_text("[]")
    with pytest.raises(ModelError, match="corrupted: not a JSON object"):
        open_encoder(str(tmp_path / "config.json"))


def test_code_and_adapters_of_a_directory_are_ignored(vit, tmp_path):
    shutil.copytree(vit, tmp_path / "vit")
    (tmp_path / "vit" / "modeling.py").write_text("raise SystemExit('code was run')\n")
    (tmp_path / "vit" / "adapter_config.json").write_text('{"base_model_name_or_path": "elsewhere"}')
    change(tmp_path / "vit" / "config.json", attn_implementation="someone/kernel", _name_or_path="someone/model")
    first, second = (open_encoder(str(path))[0].encode([PHOTO]) for path in (vit, tmp_path / "vit"))
    np.testing.assert_array_equal(first, second)


def test_an_image_of_fewer_patches_than_expected(vit):
    encoder, _ = open_encoder(str(vit))
    broken = replace(encoder, output=lambda pixels: torch.zeros(1, 3, 16))
    with pytest.raises(ModelError, match="encoder: 3 positions for an image of 4 x 4 patches"):
        broken.encode([PHOTO])


# ---- runs


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    directory = write_images(tmp_path_factory.mktemp("encoded"), 6)
    write_encoder(directory / "vit")
    callback = SilentCallback()
    run = trained(run_values(IMAGES, model={"encoder": {}}), directory, callback)
    assert f"files are read as images: 4 x 4 cells of 16 features of {directory / 'vit'} per frame" in callback.notes
    return run


def test_a_run_names_its_encoder_and_reads_photos(run, tmp_path, capsys):
    data, directory = run.config.data, run.directory.path.parent
    assert (data.feature_encoder, data.num_features, data.feature_grid) == (str(directory / "vit"), 16, [4, 4])
    assert data.feature_encoder_hash == open_encoder(data.feature_encoder)[1]
    (tmp_path / "photo.png").write_bytes(encoded(square("red", 40), "PNG"))
    expected = run.predict(tmp_path / "photo.png").text
    assert run.predict(square("red", 40)).text == run.predict(Image.fromarray(square("red", 40))).text == expected
    assert main(["predict", str(run.directory.path), str(tmp_path / "photo.png")]) == 0
    assert capsys.readouterr().out.strip() == expected
    assert len(run.evaluate(beam_size=1).items.keys) == 6
    frames = run.predictor.read_or_raise(tmp_path / "photo.png")[0]
    expected_features = open_encoder(data.feature_encoder)[0].encode([Image.fromarray(square("red", 40))])
    np.testing.assert_array_equal(frames, expected_features[0].reshape(16, 16))


def test_attention_is_drawn_over_the_image_that_the_encoder_saw(run):
    alignment = run.predict(square("red", 40), return_alignments=True, min_new_tokens=2).alignment
    assert alignment.frames.shape == (1, 32, 32, 3) and alignment.weights.shape[1:] == (1, 4, 4)
    np.testing.assert_allclose(alignment.weights.sum((1, 2, 3)), 1, atol=1e-5)


def test_loading_a_run_needs_no_encoder_and_prediction_its_own(run, tmp_path):
    path, directory = run.directory.path, Path(run.config.data.feature_encoder)
    shutil.move(directory, tmp_path / "vit")
    try:
        gone = weft.load(path)
        assert gone.model.encoder.front.front.norm.normalized_shape == (16,)
        with pytest.raises(ModelError, match="directory not found"):
            gone.predict(square("red"))
        write_encoder(directory, seed=1)
        with pytest.raises(ModelError, match="not the encoder that the run was trained with; restore its files"):
            weft.load(path).predict(square("red"))
        shutil.rmtree(directory)
    finally:
        shutil.move(tmp_path / "vit", directory)
    assert weft.load(path).predict(square("red")).text == run.predict(square("red")).text


def test_clips_have_one_vector_per_frame(tmp_path):
    write_clips(tmp_path, 3)
    write_encoder(tmp_path / "vit")
    data = {"train": "clips.tsv", "valid": "clips.tsv", "feature_encoder": "vit", "max_frames": 4}
    run = trained(run_values(data, "lstm", model={"encoder": {}}), tmp_path)
    clip = np.stack([square("red"), square("blue"), square("red")])
    (frames,) = run.predictor.read_or_raise(clip)
    single = run.predictor.readers[0].encoder.encode([Image.fromarray(square("red"))])
    assert frames.shape == (3, 16)
    np.testing.assert_allclose(frames[0], single[0].mean((0, 1)), atol=1e-6)
    alignment = run.predict(clip, return_alignments=True, min_new_tokens=2).alignment
    assert alignment.frames.shape == (3, 32, 32, 3) and alignment.weights.shape[1:] == (3, 1, 1)


def test_images_whose_grid_differs_are_refused(run):
    reader = run.predictor.readers[0]
    other = replace(reader.encoder, output=lambda pixels: torch.zeros(1, 16, 4, 5))
    with pytest.raises(
        DataError, match="a grid of 4 x 5 features, but this run reads 4 x 4; use an encoder whose preprocessor"
    ):
        replace(reader, encoder=other).from_memory(square("red"))


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ({"image_size": 32}, "data.image_size: not used with feature_encoder, which has its own preprocessing; remove it"),
        ({"channels": 1}, "data.channels: not used with feature_encoder, which has its own preprocessing; remove it"),
        ({"media": "features"}, "data.feature_encoder: not used with media 'features'; list images or clips"),
        ({"feature_encoder": None, "feature_grid": [2, 2]}, "data.feature_grid: requires feature_encoder; remove it"),
    ],
)
def test_options_that_do_not_fit_an_encoder(data, problem, tmp_path):
    values = {name: value for name, value in {**IMAGES, **data}.items() if value is not None}
    with pytest.raises(ConfigError) as caught:
        resolve(run_values(values), base=tmp_path)
    assert str(caught.value) == problem


def test_problems_of_an_encoder_are_reported_when_it_is_used(tmp_path):
    write_images(tmp_path, 3)
    data = resolve(run_values(IMAGES), base=tmp_path).data
    with pytest.raises(WeftError, match="vit: directory not found"):
        data.reader()
    np.save(tmp_path / "a.npy", np.zeros((2, 3)))
    (tmp_path / "arrays.tsv").write_text("a.npy\ttext\n")
    write_encoder(tmp_path / "vit")
    data = resolve(run_values({"train": "arrays.tsv", "feature_encoder": "vit"}), base=tmp_path).data
    with pytest.raises(DataError, match=r"holds features, but data.feature_encoder reads images and clips; remove it"):
        data.reader()
