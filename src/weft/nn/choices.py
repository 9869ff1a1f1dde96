"""Names of the functions and modules a layer can be built from, as run files write them.

The dictionaries that map them to classes have the same keys. The names alone are enough to validate a run file, without
importing torch.
"""

from __future__ import annotations

NONLINEARITIES = ("tanh", "relu", "sigmoid")
ACTIVATIONS = ("gelu", "gelu-tanh", "relu", "squared-relu", "swiglu")
POOLS = ("first", "last", "mean", "max", "attention")
SCORES = ("dot", "scaled-dot", "multiplicative", "additive")
