"""Start-up: CPU seconds of short commands, as a multiple of those of importing torch.

    python benchmarks/startup.py [--repeat 3]

Times `weft --help`, and for some of the examples `weft train` with two steps, `weft info`, and `weft predict` (of a language
model: `weft score`) with one line. Each command is a process of its own. The commands take turns with `import torch`; printed
are medians and ranges of the ratios of the rounds.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
WEFT = [sys.executable, "-P", "-m", "weft"]
# bytecode is kept, whatever the shell says: otherwise each process would compile weft again
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": ""}
LINE = "the cat sees a dog\n"
# example -> the command that reads one line, and changes of the run file
RUNS = {
    "bahdanau": ("predict", ["train.max_steps=2"]),
    "entities": ("predict", ["train.max_steps=2"]),
    "reviews": ("score", ["train.max_steps=2"]),
    # models without a network: training and using them does not import torch
    "sentiment": ("predict", ["model.arch=naive-bayes"]),
    "ngram-kneser-ney": ("score", []),
}


def cpu_seconds(command: list[str], text: str = "") -> float:
    """User and system seconds of a process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, input=text, capture_output=True, text=True, env=ENVIRONMENT)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr[-2000:]}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def commands(directory: Path) -> dict[str, list[str]]:
    """The commands by what is printed for them, in their order."""
    found = {"weft --help": ["--help"]}
    for example, (verb, settings) in RUNS.items():
        run, overrides = str(directory / example), [word for setting in settings for word in ("--set", setting)]
        run_file = str(EXAMPLES / f"{example}.toml")
        found[f"weft train, {example}"] = ["train", run_file, "--output-dir", run, "--overwrite", "--quiet", *overrides]
        found[f"weft info, {example}"] = ["info", run]
        found[f"weft {verb}, one line, {example}"] = [verb, run]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        timed = commands(Path(directory))
        torch_seconds, seconds = list[float](), {name: list[float]() for name in timed}
        for _ in range(args.repeat):
            torch_seconds.append(cpu_seconds([sys.executable, "-c", "import torch"]))
            for name, words in timed.items():
                seconds[name].append(cpu_seconds([*WEFT, *words], LINE))
    print(f"import torch: {statistics.median(torch_seconds):.2f} s")
    for name, values in seconds.items():
        ratios = [value / reference for value, reference in zip(values, torch_seconds, strict=True)]
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        print(f"{name:<40} {statistics.median(values):5.2f} s, {statistics.median(ratios):.2f} times ({spread})")


if __name__ == "__main__":
    main()
