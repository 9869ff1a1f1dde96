"""Writing a graph as an ONNX file, and comparing it with the run."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from weft.errors import ModelError
from weft.interop.onnx_graphs import Axes, Graph
from weft.interop.onnx_recurrent import translations

TOLERANCE = 1e-4  # the largest difference of an exported graph, in float32
EXAMPLE = (2, 5)  # rows and tokens of the example that is traced
MAX_FILE = 1 << 30  # bytes; the weights of larger graphs are in a second file, because an ONNX file has at most 2 GB
OPSET = 20
# what torch.onnx says about its own code
WARNINGS: Sequence[tuple[str, type[Warning]]] = [
    (r"`isinstance\(treespec, LeafSpec\)` is deprecated", FutureWarning),
    (r"# The axis name: \w+ will not be used, since it shares the same shape constraints with another axis", UserWarning),
]


def _axes(axes: Axes) -> dict[int, str]:
    return {index: name for index, name in enumerate(axes) if isinstance(name, str)}


@contextmanager
def quiet() -> Iterator[None]:
    """Silence what torch.onnx and onnxruntime say about themselves."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    with warnings.catch_warnings():
        for message, category in WARNINGS:
            warnings.filterwarnings("ignore", message, category)
        logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            logger.setLevel(level)


def write_graph(graph: Graph, directory: Path) -> Path:
    """Write one file; its weights are in a second one if they are large."""
    path = directory / f"{graph.name}.onnx"
    size = sum(tensor.numel() * tensor.element_size() for tensor in graph.module.state_dict().values())
    with quiet():
        torch.onnx.export(
            graph.module.eval(),
            (),
            path,
            kwargs={"inputs": graph.sample(*EXAMPLE)},
            dynamo=True,
            input_names=list(graph.inputs),
            output_names=list(graph.outputs),
            dynamic_shapes={"inputs": {name: _axes(axes) for name, axes in graph.inputs.items()}},
            custom_translation_table=translations(),
            opset_version=OPSET,
            external_data=size > MAX_FILE,
            verbose=False,
        )
    return path


def session(path: Path) -> Any:
    """An onnxruntime session on the CPU."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def difference(graph: Graph, path: Path, sizes: Sequence[tuple[int, int]]) -> float:
    """The largest difference between the outputs of a file and of the run, over inputs of these numbers of rows and tokens."""
    loaded, largest = session(path), 0.0
    for rows, length in sizes:
        inputs = graph.sample(rows, length)
        with torch.no_grad():
            expected = graph.reference(inputs)
        actual = loaded.run(list(graph.outputs), {name: tensor.numpy() for name, tensor in inputs.items()})
        for name, ours, theirs in zip(graph.outputs, expected, actual, strict=True):
            largest = max(largest, _difference(ours, theirs, graph.masks.get(name), inputs))
    return largest


def _difference(ours: Tensor, theirs: np.ndarray, mask: str | None, inputs: Mapping[str, Tensor]) -> float:
    """The largest difference of two outputs on tokens; infinite for different shapes or a NaN. Equal infinities are equal."""
    a, b = ours.numpy(), theirs
    if a.shape != b.shape:
        return float("inf")
    is_equal = a == b
    if mask is not None:
        axis = inputs[mask].numpy()
        is_equal |= ~axis.reshape(axis.shape[0], *[1] * (a.ndim - 3), axis.shape[1], 1)
    differences = np.abs(np.subtract(a, b, where=~is_equal, out=np.zeros(a.shape, np.float64), dtype=np.float64))
    return float(np.nan_to_num(differences, nan=np.inf).max(initial=0.0))


def check_graph(graph: Graph, path: Path, sizes: Sequence[tuple[int, int]]) -> float:
    """The largest difference between a file and the run; more than `TOLERANCE` is an error."""
    largest = difference(graph, path, sizes)
    if not largest <= TOLERANCE:
        problem = f"the outputs of {path.name} differ from those of the run by {largest:.2g}, more than {TOLERANCE:g}"
        raise ModelError("export", problem, "nothing was written")
    return largest


def quantize(path: Path) -> None:
    """Replace the weights of a file by 8-bit integers; activations are quantized while it runs."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model = onnx.load(path)
    del model.graph.value_info[:]  # the shapes that torch.onnx writes, which the quantizer does not accept
    # torch.onnx has optimized the graph; without this entry, the quantizer asks for it
    model.metadata_props.add(key="onnx.quant.pre_process", value="onnxruntime.quant")
    quantize_dynamic(model, path, weight_type=QuantType.QInt8)
