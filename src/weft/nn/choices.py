"""Option values that select a function or module, as they are written in run files.

The dictionaries in `weft.nn` that map these names to classes have the same keys. Run files are validated with the names
alone, without importing torch.
"""

from __future__ import annotations

NONLINEARITIES = ("tanh", "relu", "sigmoid")  # recurrent.NONLINEARITIES
ACTIVATIONS = ("gelu", "gelu-tanh", "relu", "squared-relu", "silu", "swiglu", "geglu-tanh")  # attention.ACTIVATIONS
GATED_ACTIVATIONS = ("swiglu", "geglu-tanh")  # halve their input
POOLINGS = ("first", "last", "mean", "max", "attention")  # pooling.POOLINGS
ATTENTION_SCORES = ("dot", "scaled-dot", "multiplicative", "additive")  # cross_attention.SourceAttention
ROPE_THETA = 10000.0  # base of the frequencies of rotary positions, if a run file does not set it
VISION_FRONTS = ("resnet", "patches", "conv3d", "resnet3d")  # vision.VisionFront
