"""Linear layers with bound weights, for decoding steps: by MKL, or by oneDNN with packed weights where it is faster.

On processors of AMD, oneDNN is faster than MKL (`linear.py`), more so with weights in its own layout: on Zen 4 most with a
large vocabulary and few rows (5 rows of 256 units to 8,000 logits take 0.21 instead of 1.4 ms), a quarter with 160 rows, and a
little elsewhere. With small matrices it takes longer to start. The choice depends on the processor and on the shapes alone.

A single row may be given as a vector, (I,), with vectors as results: MKL starts that product faster.

Shapes: B rows, I inputs, O outputs.
"""

from __future__ import annotations

import sys
from collections.abc import MutableMapping
from typing import Protocol

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from weft.nn.linear import is_twice_as_fast, prefers_onednn

MIN_PACKED_NUMBERS, MIN_PACKED_ROWS = 1 << 17, 2  # of a weight matrix, and of x
MIN_PACKED_MULTIPLICATIONS = 1 << 22  # of products with smaller matrices, where oneDNN is twice as fast


class Product(Protocol):
    """x W^T + b, (B, O), for x (B, I)."""

    def __call__(self, x: Tensor, output: Tensor | None = None) -> Tensor:
        """The result: in `output`, or in a new tensor, also if `output` is given."""


def min_packed_rows(weight: Tensor) -> int:
    """The rows from which the product with a weight matrix (O, I) is faster with packed weights. Of a weight that was made in
    inference mode, torch does not count the changes."""
    is_plain = weight.device.type == "cpu" and weight.dtype == torch.float32 and weight.is_contiguous()
    if not is_plain or weight.is_inference() or not prefers_onednn():
        return sys.maxsize
    if weight.numel() >= MIN_PACKED_NUMBERS:
        return MIN_PACKED_ROWS
    return MIN_PACKED_MULTIPLICATIONS // max(1, weight.numel()) if is_twice_as_fast() else sys.maxsize


class PackedWeight:
    """A weight matrix (O, I) in the layout of oneDNN: a copy, made at the first use and after each change of the weights."""

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight.detach()
        self.packed, self.version = self.weight, -1

    def product(self, x: Tensor, bias: Tensor | None) -> Tensor:
        if self.version != self.weight._version:
            # a layout for any number of rows
            self.packed, self.version = torch.ops.mkldnn._reorder_linear_weight(self.weight, None), self.weight._version
        bias = None if bias is None else bias.detach().contiguous()  # it would be read as if it were
        output: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.packed, bias, "none", [], "")
        return output


# all decoders of a model share the copies of its weights; a copy goes away with its weight
_packed_weights: MutableMapping[Tensor, PackedWeight] = WeakTensorKeyDictionary()


def packed_weight(weight: Tensor) -> PackedWeight:
    if weight not in _packed_weights:
        _packed_weights[weight] = PackedWeight(weight)
    return _packed_weights[weight]


class Sum(Protocol):
    """r + x W^T + b, (B, O), for x (B, I) and the residual r (B, O)."""

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor: ...


def bind_linear(weight: Tensor, bias: Tensor | None) -> Product:
    """The product with a weight matrix (O, I), without gradients. The weights may change in place, but not through `.data`,
    which torch does not count as a change, and they may not be replaced."""
    transposed, min_rows = weight.t(), min_packed_rows(weight)
    packed: PackedWeight | None = None  # found at the first use, so that decoders of short texts start fast

    def product(x: Tensor, output: Tensor | None = None) -> Tensor:
        nonlocal packed
        if x.dim() == 1:
            return torch.mv(weight, x, out=output) if bias is None else torch.addmv(bias, weight, x, out=output)
        if x.size(0) >= min_rows:
            packed = packed or packed_weight(weight)
            return packed.product(x, bias)
        return torch.mm(x, transposed, out=output) if bias is None else torch.addmm(bias, x, transposed, out=output)

    return product


def bind_sum(weight: Tensor, bias: Tensor | None) -> Sum:
    """`bind_linear` of a layer whose output is added to a residual."""
    product = bind_linear(weight, bias)
    transposed, min_rows = weight.t(), min_packed_rows(weight)

    def add(x: Tensor, residual: Tensor | None = None) -> Tensor:
        if residual is None:
            return product(x)
        if x.dim() == 1:
            return torch.addmv(residual, weight, x) if bias is None else torch.add(residual, bias).addmv_(weight, x)
        if x.size(0) >= min_rows:
            return product(x).add_(residual)
        # one operation less than to add the product: `addmm` with a bias begins with a copy of it to each row
        return torch.addmm(residual, x, transposed) if bias is None else torch.add(residual, bias).addmm_(x, transposed)

    return add
