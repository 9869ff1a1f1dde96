"""Pre-trained vision encoders, whose features replace pixels: a local directory of Hugging Face or of timm.

A directory has config.json, the weights as model.safetensors and, unless it is one of timm, preprocessor_config.json. The class
of an encoder is one of a fixed list in transformers, or an architecture that timm registers. No code of the directory is run,
pickles are refused, and nothing is downloaded. The encoder is not trained.

Shapes: N images, H height, W width of the prepared pixels, h and w those of the grid of features, F features.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from weft import files
from weft.errors import ModelError, unknown_name
from weft.media.files import CHUNK_BYTES, import_extra
from weft.tensors import read_external
from weft.training.device import pick_device

WEIGHTS, CONFIG, PREPROCESSOR = "model.safetensors", "config.json", "preprocessor_config.json"
BATCH_IMAGES = 16  # encoded at once
# the encoder in transformers by the model_type of config.json; of a model of images and texts, the part that reads images
HF_CLASSES: Mapping[str, str] = {
    "beit": "BeitModel", "clip": "CLIPVisionModel", "clip_vision_model": "CLIPVisionModel", "convnext": "ConvNextModel",
    "convnextv2": "ConvNextV2Model", "deit": "DeiTModel", "dinov2": "Dinov2Model",
    "dinov2_with_registers": "Dinov2WithRegistersModel", "resnet": "ResNetModel", "siglip": "SiglipVisionModel",
    "siglip_vision_model": "SiglipVisionModel", "swin": "SwinModel", "swinv2": "Swinv2Model", "vit": "ViTModel",
}  # fmt: skip
HF_PROCESSORS = tuple(f"{name}ImageProcessor" for name in ("Beit", "Bit", "CLIP", "ConvNext", "DeiT", "Siglip", "ViT"))
UNUSED_WEIGHTS = ("pooler.", "mask_token")  # parts of the classes that the features do not depend on
# options of an architecture that a directory of timm may set; others could name files or functions
TIMM_OPTIONS = (
    "class_token", "depth", "depths", "embed_dim", "global_pool", "img_size", "in_chans", "num_classes", "num_heads",
    "patch_size", "reg_tokens", "window_size",
)  # fmt: skip


class EncoderShape(NamedTuple):
    """The grid of features that an encoder makes of an image."""

    grid: tuple[int, int]  # h, w
    num_features: int


@dataclass(frozen=True)
class VisionEncoder:
    """Images to grids of features."""

    network: nn.Module  # pixels (N, 3, H, W) to an output with a grid or a sequence of features
    output: Callable[[Tensor], Tensor]  # the same function: features (N, F, h, w), or (N, tokens, F)
    prepare: Callable[[Sequence[Any]], Tensor]  # Pillow images to normalized pixels (N, 3, H, W)
    cell: int  # pixels per side of a cell, of an output without a grid
    mean: Tensor  # of pixels from 0 to 1 before normalization, (3, 1, 1)
    std: Tensor

    def features(self, pixels: Tensor) -> Tensor:
        """Features (N, h, w, F) of prepared pixels. Tokens before those of the image, such as [CLS], are left out."""
        output = self.output(pixels.to(next(self.network.parameters()).device))
        if output.ndim == 4:
            return output.permute(0, 2, 3, 1)
        height, width = (side // self.cell for side in pixels.shape[-2:])
        num_prefix = output.size(1) - height * width
        if num_prefix < 0:
            raise ModelError("encoder", f"{output.size(1)} positions for an image of {height} x {width} patches")
        return output[:, num_prefix:].reshape(len(output), height, width, -1)

    @torch.no_grad()
    def encode(self, images: Sequence[Any]) -> np.ndarray:
        """Features (N, h, w, F) of Pillow images, float32."""
        with torch.backends.cudnn.flags(allow_tf32=False):
            parts = [
                self.features(self.prepare(images[low : low + BATCH_IMAGES])).float().cpu().numpy()
                for low in range(0, len(images), BATCH_IMAGES)
            ]
        return np.concatenate(parts)

    def shown(self, pixels: Tensor) -> np.ndarray:
        """Prepared pixels as images (N, H, W, 3), uint8."""
        images = (pixels.cpu() * self.std + self.mean).clamp(0, 1) * 255
        array: np.ndarray = images.round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
        return array

    def shape(self) -> EncoderShape:
        """The shape of the features, of a gray image."""
        image = import_extra("PIL.Image", "Pillow", "images").new("RGB", (64, 64), (127, 127, 127))
        _, height, width, num_features = self.encode([image]).shape
        return EncoderShape((height, width), num_features)


# ---- directories


def encoder_hash(directory: Path) -> str:
    """SHA-256 of the configuration and the weights of an encoder."""
    paths = [directory / name for name in (CONFIG, PREPROCESSOR, WEIGHTS) if (directory / name).is_file()]
    return _hash(tuple((path, path.stat().st_size, path.stat().st_mtime_ns) for path in paths))


@lru_cache(maxsize=8)
def _hash(versions: tuple[tuple[Path, int, int], ...]) -> str:
    digest = hashlib.sha256()
    for path, size, _ in versions:
        digest.update(f"{path.name}:{size}|".encode())
        with path.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                digest.update(chunk)
    return digest.hexdigest()


def open_encoder(path: str, expected_hash: str | None = None) -> tuple[VisionEncoder, str]:
    """The encoder of a directory, and its hash. Raises ModelError if it is another one than expected."""
    directory = Path(path)
    _check_files(directory)
    actual = encoder_hash(directory)
    if expected_hash not in (None, actual):
        raise ModelError(directory, "not the encoder that the run was trained with", "restore its files")
    return _open(directory, actual), actual


def _check_files(directory: Path) -> None:
    if not directory.is_dir():
        raise ModelError(directory, "directory not found", "set data.feature_encoder to one with config.json")
    if not (directory / WEIGHTS).is_file():
        pickles = [path.name for path in directory.glob("*.bin")] + [path.name for path in directory.glob("*.pth")]
        if pickles:
            problem = f"{min(pickles)} is a pickle, which can run code and is not loaded"
            raise ModelError(directory, problem, "convert it to safetensors")
        raise ModelError(directory, f"{WEIGHTS} is missing")


@lru_cache(maxsize=2)
def _open(directory: Path, content: str) -> VisionEncoder:
    """The encoder with this hash, kept in memory for the next call."""
    config = _read_object(directory / CONFIG)
    encoder = _timm_encoder(directory, config) if "architecture" in config else _hf_encoder(directory, config)
    encoder.network.requires_grad_(False).eval().to(pick_device("auto"))
    return encoder


def _read_object(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ModelError(path.parent, f"{path.name} is missing")
    content = files.read_json(path)
    if not isinstance(content, dict):
        raise ModelError(path, "corrupted: not a JSON object")
    return content


def _channels(values: Sequence[float]) -> Tensor:
    return torch.tensor(list(values), dtype=torch.float32)[:, None, None]


@contextmanager
def _as_model_error(directory: Path) -> Iterator[None]:
    """What a library raises about the files of a directory is a ModelError. Weights that are missing are drawn at random, which
    must not change the random numbers of training."""
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    except ModelError:
        raise
    except Exception as error:  # a configuration of another program may contain anything
        raise ModelError(directory, f"cannot be loaded: {' '.join(str(error).split())[:200]}") from None


# ---- Hugging Face


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Without the progress bars and reports of transformers."""
    log, previous = transformers.utils.logging, transformers.utils.logging.get_verbosity()
    has_bars = log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(previous)
        if has_bars:
            log.enable_progress_bar()


def _hf_encoder(directory: Path, config: Mapping[str, Any]) -> VisionEncoder:
    model_type = str(config.get("model_type"))
    if model_type not in HF_CLASSES:
        raise ModelError(f"{directory / CONFIG}: model_type", *unknown_name("vision encoder", model_type, HF_CLASSES))
    options = {**config.get("vision_config", {})} if model_type in ("clip", "siglip") else {**config}
    for option in ("quantization_config", "auto_map"):
        if option in config or option in options:
            raise ModelError(directory / CONFIG, f"{option} is not supported", "save the model without it")
    preprocessor = _read_object(directory / PREPROCESSOR)
    transformers = import_extra("transformers", "transformers", "vision encoders")
    weights = read_external(directory / WEIGHTS)[0]
    with _as_model_error(directory), _quiet(transformers):
        # without a path, the library opens no file: neither weights of another format, nor adapters, nor code
        model_class = getattr(transformers, HF_CLASSES[model_type])
        network, info = model_class.from_pretrained(
            None,
            config=model_class.config_class.from_dict({**options, "attn_implementation": "eager"}),
            state_dict=weights,
            attn_implementation="eager",
            dtype=torch.float32,
            ignore_mismatched_sizes=True,  # they are refused below
            output_loading_info=True,
        )
        _check_weights(directory, info)
        processor = _hf_processor(transformers, directory, preprocessor)
        sizes = network.config
        # the stages of Swin halve height and width
        num_stages = len(sizes.depths) if model_type.startswith("swin") else 1
        cell = 1 if model_type in ("resnet", "convnext", "convnextv2") else int(sizes.patch_size) * 2 ** (num_stages - 1)

    def prepare(images: Sequence[Any]) -> Tensor:
        pixels: Tensor = processor(images=list(images), return_tensors="pt")["pixel_values"]
        return pixels

    def output(pixels: Tensor) -> Tensor:
        state: Tensor = network(pixel_values=pixels).last_hidden_state
        return state

    is_normalized = bool(processor.do_normalize)
    mean, std = (processor.image_mean, processor.image_std) if is_normalized else ([0.0] * 3, [1.0] * 3)
    return VisionEncoder(network, output, prepare, cell, _channels(mean), _channels(std))


def _check_weights(directory: Path, info: Mapping[str, Any]) -> None:
    missing = [name for name in sorted(info["missing_keys"]) if not any(part in name for part in UNUSED_WEIGHTS)]
    mismatched = sorted(str(entry[0]) for entry in info["mismatched_keys"])
    if missing or mismatched:
        problem = "is missing" if missing else "has another shape than config.json says"
        raise ModelError(directory, f"tensor {(missing or mismatched)[0]!r} {problem}")


def _hf_processor(transformers: Any, directory: Path, values: Mapping[str, Any]) -> Any:
    """The image processor of preprocessor_config.json, computed with Pillow."""
    name = str(values.get("image_processor_type") or values.get("feature_extractor_type"))
    name = name.replace("FeatureExtractor", "ImageProcessor").removesuffix("Fast").removesuffix("Pil")
    if name not in HF_PROCESSORS:
        where = f"{directory / PREPROCESSOR}: image_processor_type"
        raise ModelError(where, *unknown_name("image processor", name, HF_PROCESSORS))
    # transformers 5 has the version of Pillow under a name of its own
    pillow_name = f"{name}Pil" if f"{name}Pil" in dir(transformers) else name
    return getattr(transformers, pillow_name).from_dict(dict(values))


# ---- timm


def _timm_encoder(directory: Path, config: Mapping[str, Any]) -> VisionEncoder:
    timm = import_extra("timm", "timm", "vision encoders of timm")
    name, options = str(config["architecture"]), config.get("model_args") or {}
    if not timm.is_model(name):  # other names are addresses
        raise ModelError(f"{directory / CONFIG}: architecture", f"timm has no architecture {name!r}")
    if unknown := sorted(set(options) - set(TIMM_OPTIONS)):
        raise ModelError(directory / CONFIG, f"model_args.{unknown[0]} is not supported", f"use {', '.join(TIMM_OPTIONS)}")
    weights = read_external(directory / WEIGHTS)[0]
    with _as_model_error(directory):
        network = timm.create_model(name, pretrained=False, **{"num_classes": config.get("num_classes", 1000), **options})
        network.load_state_dict(weights, strict=True)
        data = timm.data.resolve_data_config(pretrained_cfg=dict(config.get("pretrained_cfg") or {}), model=network)
        transform = timm.data.create_transform(**data)
        cell = int(network.feature_info[-1]["reduction"])

    def prepare(images: Sequence[Any]) -> Tensor:
        return torch.stack([transform(image) for image in images])

    def output(pixels: Tensor) -> Tensor:
        features: Tensor = network.forward_features(pixels)
        is_channels_last = features.ndim == 4 and features.size(1) != network.num_features
        return features.permute(0, 3, 1, 2) if is_channels_last else features

    return VisionEncoder(network, output, prepare, cell, _channels(data["mean"]), _channels(data["std"]))
