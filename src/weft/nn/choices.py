"""What run files call the functions and modules that a layer is made of. The dicts beside those have these keys; names alone
are enough to read a run file, and need no torch."""

from __future__ import annotations

NONLINEARITIES = ("tanh", "relu", "sigmoid")
ACTIVATIONS = ("gelu", "gelu-tanh", "relu", "squared-relu", "swiglu")
POOLS = ("first", "last", "mean", "max", "attention")
SCORES = ("dot", "scaled-dot", "multiplicative", "additive")
