"""Policy gradients on generated reviews: how far the mean reward rises, in standard deviations of the rewards of the initial
model, at which KL divergence, and whether an independent judge agrees. The language model, the reward model and the judge are
those of `weft demo feedback`; RLOO, PPO and GRPO are trained with three seeds each.

    python benchmarks/feedback.py [--output-dir DIR] [--seeds 3]
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np

import weft
from weft.cli import demo_feedback as demo

ALGORITHMS = ("rloo", "ppo", "grpo")


def absolute(values: dict[str, Any], base: Path) -> dict[str, Any]:
    """A run file whose paths are absolute."""
    data = {name: str(base / value) if name in PATHS else value for name, value in values["data"].items()}
    train = {name: str(base / value) if name == "init_from" else value for name, value in values.get("train", {}).items()}
    return {**values, "data": {**data, "valid": _path(values["data"].get("valid"), base)}, "train": train}


PATHS = ("train", "reward_from", "judge_from")


def _path(value: Any, base: Path) -> Any:
    return str(base / value) if isinstance(value, str) else value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output-dir", type=Path, default=Path("runs/feedback"))
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    out: Path = arguments.output_dir.absolute()
    demo.write_data(out)
    files = {name: absolute(values, out) for name, values in demo.run_files().items()}
    for name in ("lm", "reward", "judge"):
        weft.train(files[name], output_dir=out / name)
    lm, tokenizer = weft.load(out / "lm"), {"file": str(out / "lm" / "tokenizer.json")}
    print(f"{'run':<8} {'gain/s.d.':>9} {'reward':>7} {'judge':>7} {'KL':>6} {'repetition':>10} {'tokens':>6} {'seconds':>7}")
    for algorithm in ALGORITHMS:
        gains = []
        for seed in range(arguments.seeds):
            start = time.monotonic()
            model = {**demo.POLICY, "algorithm": algorithm}
            values = {**files[demo.POLICIES[0]], "seed": seed, "tokenizer": tokenizer, "model": model}
            run = weft.train(values, output_dir=out / f"{algorithm}-{seed}")
            best = max(demo.curve(run.path), key=lambda point: point["reward"] - demo.POLICY["kl_weight"] * point["kl"])
            base, _ = demo.measure("lm", lm, run, 0.0)
            row, _ = demo.measure(algorithm, run, run, best["kl"])
            gains.append((row.reward - base.reward) / base.deviation)
            print(
                f"{algorithm}-{seed:<3} {gains[-1]:>9.2f} {row.reward:>7.2f} {row.judge:>7.2f} {row.kl:>6.1f}"
                f" {row.repetition:>9.1f}% {row.length:>6.0f} {time.monotonic() - start:>7.0f}",
                flush=True,
            )
        print(f"{algorithm}: gain {np.mean(gains):.2f} standard deviations over {len(gains)} seeds")
    print(f"initial: reward {base.reward:.2f} (s.d. {base.deviation:.2f}), judge {base.judge:.2f}")


if __name__ == "__main__":
    main()
