"""How far gradients reach: rnn, lstm, gru and transformer on a task that needs 100 steps of memory, at the start and trained;
and down a stack of eight recurrent layers, plain and with what joins layers.

A line is a letter of four, up to 110 dots, a question mark, and the letter again. The bar: 100 steps before the answer the
gradient of a vanilla RNN is more than 1e3 times smaller than one step before it, that of the LSTM, whose forget gate starts
open, within 1e1. Writes gradient-time.svg and gradient-layers.svg, in about five minutes on one core.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path
from typing import Any

import torch
from _measured import trained
from torch import Tensor

from weft.cli.threads import set_threads
from weft.explain.flow import (
    STARTED,
    TRAINED,
    Depth,
    Flow,
    depth_picture,
    exact,
    fresh,
    relative,
    through_layers,
    through_time,
    time_picture,
)
from weft.files import write_text
from weft.run import Run

KEYS, LONGEST, LINES = "abcd", 110, 3000
KINDS: dict[str, dict[str, Any]] = {
    "rnn": {"lr": 0.01, "steps": 1500},
    "lstm": {"lr": 0.01, "steps": 1500},
    "gru": {"lr": 0.01, "steps": 600},
    "transformer": {"lr": 0.003, "steps": 400},
}
CONNECTIONS = ("plain", "residual", "highway", "dense")
STEPS = 100


def write_lines(path: Path) -> None:
    """Short gaps are as frequent as long ones, by their logarithm: nobody learns from long ones alone."""
    chance = random.Random(0)
    lines = []
    for _ in range(LINES):
        key = chance.choice(KEYS)
        lines.append(f"{key}{'.' * round(LONGEST ** chance.random())}?{key}")
    path.write_text("\n".join(lines) + "\n")


def values_of(data: Path, model: dict[str, Any], train: dict[str, Any]) -> dict[str, Any]:
    return {
        "task": "lm",
        "data": {"train": str(data.absolute()), "valid": 0.05, "read": "lines", "window": LONGEST + 4},
        "model": {"width": 32, **model},
        "train": {"batch_tokens": 2048, "validations": 5, "device": "cpu", **train},
    }


def asked(run: Run) -> Tensor:
    """Each letter with a gap of 101, and its answer: 100 steps lie between one step before the answer and the first dot."""
    texts = [f"{key}{'.' * (STEPS + 1)}?{key}" for key in KEYS]
    return torch.tensor([[run.tokenizer.begin, *run.tokenizer.encode(text).tolist()] for text in texts])


def time_flows(run: Run) -> dict[str, Flow]:
    return {when: through_time(exact(model), asked(run)) for when, model in ((STARTED, fresh(run)), (TRAINED, run.model))}


def depths(run: Run) -> dict[str, Depth]:
    found = {}
    for when, model in ((STARTED, fresh(run)), (TRAINED, run.model)):
        doubled: Any = exact(model)
        tokens = asked(run)
        found[when] = through_layers(
            doubled, lambda doubled=doubled, tokens=tokens: doubled.loss(tokens[:, :-1], tokens[:, 1:])[0].mean()
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks/gradients"), help="finished runs there are kept")
    parser.add_argument("--threads", type=int, default=None)
    chosen = parser.parse_args()
    set_threads(chosen.threads)
    chosen.out.mkdir(parents=True, exist_ok=True)
    data = chosen.out / "memory.txt"
    write_lines(data)
    flows, layers = {}, {}
    for kind, train in KINDS.items():
        heads = {"heads": 2} if kind == "transformer" else {}
        run, seconds = trained(values_of(data, {"kind": kind, "layers": 1, **heads}, train), chosen.out / kind, chosen.out)
        flows[kind] = time_flows(run)
        shares = "  ".join(f"{when} {relative(flow)[STEPS]:.2g}" for when, flow in flows[kind].items())
        key = run.score([f"a{'.' * (STEPS + 1)}?a"])[0].log_probs[-2]
        print(f"{kind:12} {STEPS} steps back: {shares}; nats of the answer {-key:.3f}; trained in {seconds:.0f} s", flush=True)
    for kind in CONNECTIONS:
        model = {"kind": "rnn", "layers": 8, "connection": kind}
        run, seconds = trained(values_of(data, model, {"lr": 0.003, "steps": 200}), chosen.out / f"deep-{kind}", chosen.out)
        layers[kind] = depths(run)
        shares = "  ".join(f"{when} {depth.norms[0] / depth.norms[-1]:.2g}" for when, depth in layers[kind].items())
        print(f"{kind:12} bottom over top of 8 layers: {shares}; trained in {seconds:.0f} s", flush=True)
    time_title = f"Remembering a letter: gradients up to {STEPS} steps back"
    write_text(chosen.out / "gradient-time.svg", time_picture(flows, title=time_title))
    depth_title = "Gradients through eight recurrent layers, by what joins them"
    write_text(chosen.out / "gradient-layers.svg", depth_picture(layers, title=depth_title))
    rnn, lstm = (relative(flows[kind][TRAINED])[: STEPS + 1] for kind in ("rnn", "lstm"))
    met = rnn[STEPS] < 1e-3 and lstm.min() > 0.1 and lstm.max() < 10
    print(f"bar, rnn below 1e-3 and lstm within 0.1 to 10: {'met' if met else 'MISSED'}")


if __name__ == "__main__":
    main()
