"""Speed of exported graphs in onnxruntime, compared with the networks of weft, on one thread.

    python benchmarks/onnx_speed.py [--repeats 30]

Classifiers (Transformer, LSTM), a tagger (GRU with a character encoder) and language models (gpt, LSTM; one new token after 64)
of 2 to 4 layers and 256 units are trained for 3 steps on random words, because speed does not depend on the weights.
Milliseconds are CPU time of the process, the median of all repeats; both programs take turns. One row is the latency of one
text of 20 tokens, 64 rows are the throughput. The difference is the largest of the outputs, log-probabilities or emissions.

Targets: with one row 2 times the speed of weft, recurrent networks 4 times; difference at most 2e-5 in float32.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import onnxruntime
import torch
from _common import verdict

import weft
from weft.interop.onnx_check import difference, quantize, write_graph
from weft.interop.onnx_graphs import Graph, shapes
from weft.interop.onnx_models import EXPORTERS

LENGTH, ROWS = 20, (1, 64)
CACHED = 64  # tokens before the new one of a language model
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "classifier, transformer": ("classification", {"arch": "transformer", "hidden_size": 256, "num_layers": 4}),
    "classifier, lstm": ("classification", {"arch": "lstm", "hidden_size": 256, "num_layers": 2}),
    "tagger, gru": ("tagging", {"arch": "gru", "hidden_size": 256, "num_layers": 2}),
    "lm step, gpt": ("lm", {"arch": "gpt", "hidden_size": 256, "num_layers": 4}),
    "lm step, lstm": ("lm", {"arch": "lstm", "hidden_size": 256, "num_layers": 2}),
}


def words(rng: random.Random, count: int) -> list[str]:
    return ["".join(rng.choices("abcdefghijklmnop", k=rng.randint(2, 4))) for _ in range(count)]


def write_data(task: str, path: Path) -> None:
    rng = random.Random(1)
    lines = [words(rng, 15) for _ in range(300)]
    if task == "classification":
        text = "label\ttext\n" + "".join(f"{rng.choice('abc')}\t{' '.join(line)}\n" for line in lines)
    elif task == "tagging":
        text = "\n\n".join("\n".join(f"{word} {rng.choice('NVA')}" for word in line) for line in lines)
    else:
        text = "\n".join(map(" ".join, lines))
    path.write_text(text + "\n")


def trained(task: str, model: dict[str, Any], directory: Path) -> Any:
    data = directory / f"{task}.{'tsv' if task == 'classification' else 'txt'}"
    write_data(task, data)
    values = {
        "task": task,
        "recommend": False,
        "data": {"train": str(data), "valid": 0.1},
        "tokenizer": {"type": "bpe", "vocab_size": 4000} if task == "lm" else {"type": "word", "vocab_size": 4000},
        "model": model,
        "train": {"max_steps": 3, "device": "cpu"},
    }
    return weft.train(values, output_dir=directory / f"{task}-{model['arch']}")


def batch(graph: Graph, rows: int, *, is_step: bool) -> dict[str, torch.Tensor]:
    if not is_step:
        return graph.sample(rows, LENGTH)
    inputs = graph.sample(rows, 2 * CACHED)
    return {name: tensor[:, :1] if name in ("tokens", "token_mask") else tensor for name, tensor in inputs.items()}


def cpu_milliseconds(calls: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """The median CPU time of each call; they take turns."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for repeat in range(repeats + 3):
        for name, call in calls.items():
            start = time.process_time()
            call()
            if repeat >= 3:
                times[name].append(1000 * (time.process_time() - start))
    return {name: statistics.median(values) for name, values in times.items()}


def session(path: Path) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def measure(name: str, repeats: int, directory: Path) -> None:
    task, model = MODELS[name]
    run = trained(task, model, directory)
    exporter = next(EXPORTERS[base] for base in type(run.config.model).__mro__ if base in EXPORTERS)
    exported = exporter(run)
    graph = exported.graphs[0]
    paths = {"float32": write_graph(graph, directory), "int8": directory / "int8.onnx"}
    paths["int8"].write_bytes(paths["float32"].read_bytes())
    quantize(paths["int8"])
    differences = {kind: difference(graph, path, shapes(exported.max_length)) for kind, path in paths.items()}
    sessions = {kind: session(path) for kind, path in paths.items()}
    for rows in ROWS:
        inputs = batch(graph, rows, is_step=task == "lm")
        arrays = {key: tensor.numpy() for key, tensor in inputs.items()}
        calls: dict[str, Callable[[], Any]] = {
            "weft": partial(graph.reference, inputs),
            **{kind: partial(loaded.run, None, arrays) for kind, loaded in sessions.items()},
        }
        with torch.inference_mode():
            times = cpu_milliseconds(calls, repeats)
        ratios = {kind: times["weft"] / times[kind] for kind in paths}
        texts = "  ".join(f"{kind} {times[kind]:7.2f} ms ({ratios[kind]:4.1f}x)" for kind in paths)
        print(f"{name:25} {rows:3} rows  weft {times['weft']:7.2f} ms  {texts}", flush=True)
        if rows == 1:
            target = 4.0 if model["arch"] in ("lstm", "gru") else 2.0
            print(f"{'':25} {verdict(ratios['float32'] >= target)}: {target:g} times the speed", flush=True)
    sizes = {kind: path.stat().st_size / 1e6 for kind, path in paths.items()}
    is_met, largest = verdict(differences["float32"] <= 2e-5), ", ".join(f"{kind} {differences[kind]:.1e}" for kind in paths)
    print(f"{'':25} {is_met}: difference {largest}; {sizes['float32']:.1f} MB, int8 {sizes['int8']:.1f} MB", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=30)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in MODELS:
        with tempfile.TemporaryDirectory() as directory:
            measure(name, options.repeats, Path(directory))


if __name__ == "__main__":
    main()
