"""Tiny pre-trained vision encoders with random weights, in directories of Hugging Face and timm."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file

SIDE = 32  # pixels of a prepared image
LAYERS: dict[str, Any] = {
    "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32, "image_size": SIDE,
    "patch_size": 8,
}  # fmt: skip
STAGES: dict[str, Any] = {"hidden_sizes": [8, 16], "depths": [1, 1]}
# by model_type: the class, its options, and the image processor with its options
MODELS: dict[str, tuple[str, dict[str, Any], str, dict[str, Any]]] = {
    "vit": ("ViTModel", LAYERS, "ViT", {"size": {"height": SIDE, "width": SIDE}}),
    "deit": ("DeiTModel", LAYERS, "DeiT", {"size": {"height": 36, "width": 36}, "crop_size": SIDE}),
    "clip_vision_model": ("CLIPVisionModel", LAYERS, "CLIP", {"size": {"shortest_edge": 36}, "crop_size": SIDE}),
    "clip": (
        "CLIPModel",
        {
            "vision_config": LAYERS,
            "text_config": {**LAYERS, "vocab_size": 9, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2},
            "projection_dim": 8,
        },
        "CLIP",
        {"size": {"shortest_edge": 36}, "crop_size": SIDE},
    ),
    "resnet": ("ResNetModel", {"embedding_size": 8, **STAGES}, "ConvNext", {"size": {"shortest_edge": SIDE}}),
    "swin": (
        "SwinModel",
        {"image_size": SIDE, "patch_size": 4, "embed_dim": 8, "depths": [1, 1], "num_heads": [1, 2], "window_size": 4},
        "ViT",
        {"size": {"height": SIDE, "width": SIDE}},
    ),
    "dinov2": ("Dinov2Model", LAYERS, "Bit", {"size": {"shortest_edge": 36}, "crop_size": SIDE}),
    "convnext": ("ConvNextModel", {"num_stages": 2, **STAGES}, "ConvNext", {"size": {"shortest_edge": SIDE}}),
}


def write_encoder(directory: Path, model_type: str = "vit", seed: int = 0) -> Path:
    """The directory of a tiny encoder, as transformers writes it."""
    name, options, processor, processing = MODELS[model_type]
    model_class = getattr(transformers, name)
    torch.manual_seed(seed)
    model = model_class(model_class.config_class(**options)).eval()
    with torch.no_grad():  # the default weights are so small that all features are equal
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(directory)
    getattr(transformers, f"{processor}ImageProcessorPil")(**processing).save_pretrained(directory)
    return directory


# by the name of the architecture
TIMM_MODELS: dict[str, dict[str, Any]] = {
    "vit_tiny_patch16_224": {"img_size": SIDE, "patch_size": 8, "embed_dim": 16, "depth": 1, "num_heads": 2, "num_classes": 3},
    "swin_tiny_patch4_window7_224": {
        "img_size": SIDE, "window_size": 4, "embed_dim": 8, "depths": [1, 1], "num_heads": [1, 2], "num_classes": 3,
    },
}  # fmt: skip


def write_timm_encoder(directory: Path, architecture: str) -> Path:
    """The directory of a tiny encoder, as timm writes it."""
    import timm

    directory.mkdir()
    options = TIMM_MODELS[architecture]
    torch.manual_seed(0)
    model = timm.create_model(architecture, pretrained=False, **options)
    save_file(model.state_dict(), directory / "model.safetensors")
    processing = {
        "input_size": [3, SIDE, SIDE],
        "crop_pct": 0.9,
        "mean": [0.5] * 3,
        "std": [0.5] * 3,
        "interpolation": "bicubic",
    }
    config = {"architecture": architecture, "num_classes": 3, "model_args": options, "pretrained_cfg": processing}
    (directory / "config.json").write_text(json.dumps(config))
    return directory
