"""Select device and precision."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from weft.errors import UsageError
from weft.parallel.group import ALONE, Group

if TYPE_CHECKING:
    import torch

    from weft.runs.config import RunConfig
    from weft.training.loop import DeviceConfig


GPU_FILES = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd", "/proc/driver/nvidia/version")  # Linux, WSL and ROCm


def has_driver() -> bool:
    """Whether there is a driver of a GPU. Without one, nobody needs to import torch to find that there is no GPU."""
    return any(map(os.path.exists, GPU_FILES))


def uses_gpu(name: str) -> bool:
    """Whether a device setting means a GPU. Without any driver it is answered without torch, which takes seconds to import."""
    if name == "cpu" or (name == "auto" and not has_driver()):
        return False
    return pick_device(name).type == "cuda"


def pick_device(name: str) -> torch.device:
    import torch

    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise UsageError("train.device", "no CUDA GPU found", "use 'auto' or 'cpu'")
    if name == "cuda":
        # cuDNN attention takes 15 ms to plan each new shape, and batches differ in length
        torch.backends.cuda.enable_cudnn_sdp(False)
    return torch.device(name)


def pick_device_config(config: RunConfig, group: Group = ALONE) -> DeviceConfig:
    """Device and precision of a run. The precision "auto" is bfloat16 on GPUs that support it, float32 otherwise. The processes
    of a group on one host each have a GPU of their own."""
    import torch

    from weft.training.loop import DeviceConfig

    device, precision = pick_device(config.train.device), config.train.precision
    if device.type == "cuda" and group.size > 1:
        device = torch.device("cuda", group.local_rank)
        torch.cuda.set_device(device)
    if precision == "auto":
        precision = "bfloat16" if device.type == "cuda" and torch.cuda.is_bf16_supported() else "float32"
    return DeviceConfig(device, torch.bfloat16 if precision == "bfloat16" else torch.float32, group)
