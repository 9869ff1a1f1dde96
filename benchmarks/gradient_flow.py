"""Gradient flow through time and depth, at initialization and after training: RNN, LSTM, GRU and Transformer on a task with
dependencies of 100 steps, and stacks of eight recurrent layers with different skip connections.

A line is one of four letters, up to 110 dots, a question mark, and the same letter. Target: 100 steps before the answer, the
gradient of the vanilla RNN is more than 1e3 times smaller than one step before it; that of the LSTM, whose forget gate is
initialized open, is within a factor of 10. Trains in about five minutes on one core, prints the output of
`weft explain --view gradient-flow` for all runs, and writes gradient-time.svg and gradient-layers.svg.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path
from typing import Any

import numpy as np
from _common import train_here, verdict

from weft.cli.threads import set_threads
from weft.explain.gradient_flow import TRAINED, TimeGradients, relative_norms
from weft.explain.gradient_flow_runs import compare_gradient_flow
from weft.explain.options import ExplainConfig
from weft.files import write_text

LETTERS, MAX_DISTANCE, NUM_LINES = "abcd", 110, 3000
ARCHS: dict[str, dict[str, Any]] = {
    "rnn": {"lr": 0.01, "max_steps": 1500},
    "lstm": {"lr": 0.01, "max_steps": 1500},
    "gru": {"lr": 0.01, "max_steps": 600},
    "transformer": {"lr": 0.003, "max_steps": 400},
}
# name of the run: option
SKIP_CONNECTIONS = {"plain": "none", "residual": "residual", "highway": "highway", "dense": "dense"}
STEPS = 100
PROBE = f"{LETTERS[0]}{'.' * (STEPS + 1)}?{LETTERS[0]}"


def write_lines(path: Path) -> None:
    """Write lines with log-uniform distances: models cannot learn from long distances alone."""
    rng = random.Random(0)
    lines = []
    for _ in range(NUM_LINES):
        letter = rng.choice(LETTERS)
        lines.append(f"{letter}{'.' * round(MAX_DISTANCE ** rng.random())}?{letter}")
    path.write_text("\n".join(lines) + "\n")


def run_values(data: Path, model: dict[str, Any], train: dict[str, Any]) -> dict[str, Any]:
    return {
        "task": "lm",
        "data": {"train": str(data.absolute()), "valid": 0.05, "read_as": "lines", "context_length": MAX_DISTANCE + 4},
        "model": {"hidden_size": 32, **model},
        "train": {"batch_tokens": 2048, "num_validations": 5, "device": "cpu", **train},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--output-dir",
        type=Path,
        default=Path("runs/benchmarks/gradients"),
        help="directory of the runs; finished runs are kept",
    )
    parser.add_argument("--threads", type=int, default=None)
    args = parser.parse_args()
    set_threads(args.threads)
    args.output_dir.mkdir(parents=True, exist_ok=True)
    data = args.output_dir / "memory.txt"
    write_lines(data)
    runs = {}
    for arch, train in ARCHS.items():
        heads = {"num_heads": 2} if arch == "transformer" else {}
        values = run_values(data, {"arch": arch, "num_layers": 1, **heads}, train)
        runs[arch], seconds = train_here(values, args.output_dir / arch, args.output_dir)
        answer_loss = -runs[arch].score(PROBE).token_log_probs[-2]
        print(f"{arch:12} loss of the answer {answer_loss:.3f}; trained in {seconds:.0f} s", flush=True)
    for name, connection in SKIP_CONNECTIONS.items():
        model = {"arch": "rnn", "num_layers": 8, "skip_connection": connection}
        values = run_values(data, model, {"lr": 0.003, "max_steps": 200})
        runs[name], seconds = train_here(values, args.output_dir / name, args.output_dir)
        print(f"{name:12} trained in {seconds:.0f} s", flush=True)
    view = compare_gradient_flow(runs, PROBE, ExplainConfig())
    print("\n".join(view.lines))
    for name, figure in zip(("time", "layers"), view.figures, strict=True):
        write_text(args.output_dir / f"gradient-{name}.svg", figure.svg)
    flows = {run["name"]: run["time"][TRAINED] for run in view.data["runs"]}
    rnn, lstm = (
        relative_norms(TimeGradients(flows[arch]["layers"], np.array(flows[arch]["norms"])))[:STEPS] for arch in ("rnn", "lstm")
    )
    is_met = rnn[-1] < 1e-3 and lstm.min() > 0.1 and lstm.max() < 10
    print(f"target, rnn below 1e-3 and lstm between 0.1 and 10: {verdict(is_met)}")


if __name__ == "__main__":
    main()
