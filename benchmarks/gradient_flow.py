"""How far gradients reach: rnn, lstm, gru and transformer on a task that needs 100 steps of memory, and stacks of eight
recurrent layers, plain and with what joins layers; at the start and trained, in one plot.

A line is a letter of four, up to 110 dots, a question mark, and the letter again. The bar: 100 steps before the answer the
gradient of a vanilla RNN is more than 1e3 times smaller than one step before it, that of the LSTM, whose forget gate starts
open, within 1e1. Trains the runs in about five minutes on one core, prints the table of `weft explain --view gradient-flow`
for all of them, and writes gradient-time.svg and gradient-layers.svg.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path
from typing import Any

import numpy as np
from _measured import trained

from weft.cli.threads import set_threads
from weft.explain.gradient_flow import TRAINED, TimeGradients, relative_norms
from weft.explain.gradient_flow_runs import compare_gradient_flow
from weft.explain.options import ExplainConfig
from weft.files import write_text

KEYS, LONGEST, LINES = "abcd", 110, 3000
KINDS: dict[str, dict[str, Any]] = {
    "rnn": {"lr": 0.01, "max_steps": 1500},
    "lstm": {"lr": 0.01, "max_steps": 1500},
    "gru": {"lr": 0.01, "max_steps": 600},
    "transformer": {"lr": 0.003, "max_steps": 400},
}
CONNECTIONS = ("plain", "residual", "highway", "dense")
STEPS = 100
ASKED = f"{KEYS[0]}{'.' * (STEPS + 1)}?{KEYS[0]}"


def write_lines(path: Path) -> None:
    """Log-uniform distances: a model learns nothing from long ones alone."""
    chance = random.Random(0)
    lines = []
    for _ in range(LINES):
        key = chance.choice(KEYS)
        lines.append(f"{key}{'.' * round(LONGEST ** chance.random())}?{key}")
    path.write_text("\n".join(lines) + "\n")


def values_of(data: Path, model: dict[str, Any], train: dict[str, Any]) -> dict[str, Any]:
    return {
        "task": "lm",
        "data": {"train": str(data.absolute()), "valid": 0.05, "read_as": "lines", "context_length": LONGEST + 4},
        "model": {"hidden_size": 32, **model},
        "train": {"batch_tokens": 2048, "num_validations": 5, "device": "cpu", **train},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--output-dir", type=Path, default=Path("runs/benchmarks/gradients"), help="finished runs there are kept"
    )
    parser.add_argument("--threads", type=int, default=None)
    chosen = parser.parse_args()
    set_threads(chosen.threads)
    chosen.output_dir.mkdir(parents=True, exist_ok=True)
    data = chosen.output_dir / "memory.txt"
    write_lines(data)
    runs = {}
    for kind, train in KINDS.items():
        heads = {"num_heads": 2} if kind == "transformer" else {}
        values = values_of(data, {"arch": kind, "num_layers": 1, **heads}, train)
        runs[kind], seconds = trained(values, chosen.output_dir / kind, chosen.output_dir)
        key = runs[kind].score([ASKED])[0].log_probs[-2]
        print(f"{kind:12} nats of the answer {-key:.3f}; trained in {seconds:.0f} s", flush=True)
    for kind in CONNECTIONS:
        model = {"arch": "rnn", "num_layers": 8, "skip_connection": "none" if kind == "plain" else kind}
        values = values_of(data, model, {"lr": 0.003, "max_steps": 200})
        runs[kind], seconds = trained(values, chosen.output_dir / kind, chosen.output_dir)
        print(f"{kind:12} trained in {seconds:.0f} s", flush=True)
    view = compare_gradient_flow(runs, ASKED, ExplainConfig())
    print("\n".join(view.lines))
    for name, picture in zip(("time", "layers"), view.figures, strict=True):
        write_text(chosen.output_dir / f"gradient-{name}.svg", picture.svg)
    flows = {one["name"]: one["time"][TRAINED] for one in view.data["runs"]}
    rnn, lstm = (
        relative_norms(TimeGradients(flows[kind]["layers"], np.array(flows[kind]["norms"])))[:STEPS] for kind in ("rnn", "lstm")
    )
    met = rnn[-1] < 1e-3 and lstm.min() > 0.1 and lstm.max() < 10
    print(f"bar, rnn below 1e-3 and lstm within 0.1 to 10: {'met' if met else 'MISSED'}")


if __name__ == "__main__":
    main()
