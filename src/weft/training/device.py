"""Where a run is computed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.errors import UsageError

if TYPE_CHECKING:
    import torch

    from weft.runs.config import RunConfig
    from weft.training.loop import DeviceConfig


def pick_device(name: str) -> torch.device:
    import torch

    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise UsageError("train.device", "'cuda' was asked for, but torch sees no GPU", "use 'auto' or 'cpu'")
    if name == "cuda":
        # cuDNN's attention plans anew, for 15 ms, at every shape that it has not seen; lengths of text differ all the time
        torch.backends.cuda.enable_cudnn_sdp(False)
    return torch.device(name)


def pick_device_config(config: RunConfig) -> DeviceConfig:
    """bf16 where a GPU has it, float32 elsewhere, unless the run file says so."""
    import torch

    from weft.training.loop import DeviceConfig

    device, wanted = pick_device(config.train.device), config.train.precision
    if wanted == "auto":
        wanted = "bfloat16" if device.type == "cuda" and torch.cuda.is_bf16_supported() else "float32"
    return DeviceConfig(device, torch.bfloat16 if wanted == "bfloat16" else torch.float32)
