"""Rewards that a Python function verifies: a language model learns to add, to rhyme, or to keep a format.

    python examples/verified_rewards.py arithmetic [--steps 150] [--output-dir runs/verified]

The language model is trained on lines of which many are wrong: sums, pairs of words that may rhyme, dates in several formats. A
policy gradient (RLOO) then rewards what a function finds right. The table has the mean reward of responses to the same
prompts, before and after. Each takes about a minute of CPU time.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from _shared import StableRandom

import weft

NUM_LINES = 8000
WORDS = "cat hat bat mat dog log fog frog sun run fun bun tree bee knee free light night kite bite star car jar far"
FORMATS = ("{:02}.{:02}.", "{}/{}", "{:02}-{:02}", "on {} of {}")


class Problem(NamedTuple):
    line: Callable[[StableRandom], tuple[str, str]]  # a prompt and a continuation of it, which may be wrong
    reward: Callable[[Sequence[str], Sequence[str]], list[float]]  # of responses to prompts


def sum_line(rng: StableRandom) -> tuple[str, str]:
    a, b = rng.below(10), rng.below(10)
    return f"{a}+{b}=", str(a + b if rng.below(2) == 0 else rng.below(19))


def reward_sums(prompts: Sequence[str], responses: Sequence[str]) -> list[float]:
    expected = [sum(int(number) for number in prompt.rstrip("=").split("+")) for prompt in prompts]
    return [float(response.strip() == str(value)) for response, value in zip(responses, expected, strict=True)]


def rhyme_line(rng: StableRandom) -> tuple[str, str]:
    return f"{rng.word(WORDS)} / ", rng.word(WORDS)


def reward_rhymes(prompts: Sequence[str], responses: Sequence[str]) -> list[float]:
    """1 for another word with the same ending, by letters; half of it for a word of the list."""
    rewards = []
    for prompt, response in zip(prompts, responses, strict=True):
        word, answer = prompt.removesuffix(" / "), response.strip()
        rhymes = answer in WORDS.split() and answer != word and answer[-2:] == word[-2:]
        rewards.append(1.0 if rhymes else 0.5 * (answer in WORDS.split()))
    return rewards


def date_line(rng: StableRandom) -> tuple[str, str]:
    return "date: ", rng.choice(FORMATS).format(1 + rng.below(28), 1 + rng.below(12))


def reward_dates(prompts: Sequence[str], responses: Sequence[str]) -> list[float]:
    return [float(re.fullmatch(r"(0[1-9]|[12]\d)-(0[1-9]|1[0-2])", response.strip()) is not None) for response in responses]


PROBLEMS = {
    "arithmetic": Problem(sum_line, reward_sums),
    "rhyme": Problem(rhyme_line, reward_rhymes),
    "format": Problem(date_line, reward_dates),
}


def train_language_model(problem: Problem, directory: Path, steps: int) -> weft.Run[Any, Any]:
    """A language model of characters, and prompts in prompts.jsonl."""
    rng = StableRandom(0)
    lines = [problem.line(rng) for _ in range(NUM_LINES)]
    (directory / "lines.txt").write_text("".join(f"{prompt}{rest}\n" for prompt, rest in lines))
    prompts = sorted({prompt for prompt, _ in lines})
    (directory / "prompts.jsonl").write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
    values = {
        "task": "lm",
        "recommend": False,
        "data": {"train": str(directory / "lines.txt"), "read_as": "lines", "valid": 0.05, "context_length": 32},
        "tokenizer": {"type": "char"},
        "model": {"arch": "gpt", "num_layers": 2, "hidden_size": 64},
        "train": {"max_steps": steps, "batch_tokens": 2048},
    }
    return weft.train(values, output_dir=directory / "lm", overwrite=True)


def train_policy(problem: Problem, initial: weft.Run[Any, Any], directory: Path, steps: int) -> weft.Run[Any, Any]:
    values = {
        "task": "policy-gradient",
        "data": {"train": str(directory / "prompts.jsonl"), "max_length": 32},
        "tokenizer": {"file": str(initial.path / "tokenizer.json")},
        "model": {**initial.config.to_dict()["model"], "max_new_tokens": 12, "kl_weight": 0.02},
        "train": {"init_from": str(initial.path), "max_steps": steps, "lr": 2e-3, "num_validations": 4, "batch_tokens": 2048},
    }
    return weft.train(values, output_dir=directory / "policy", overwrite=True, reward=problem.reward)


def rewarded(problem: Problem, run: weft.Run[Any, Any], directory: Path) -> float:
    """The mean reward of sampled responses to all prompts."""
    prompts = [json.loads(line)["prompt"] for line in (directory / "prompts.jsonl").read_text().splitlines()]
    prompts = (prompts * -(-100 // len(prompts)))[: max(100, len(prompts))]
    samples = run.generate(prompts, max_new_tokens=12, temperature=1.0, seed=1)
    rewards = problem.reward(prompts, [sample.text for sample in samples])
    return sum(rewards) / len(rewards)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problem", choices=list(PROBLEMS))
    parser.add_argument("--steps", type=int, default=150, help="of the policy gradient")
    parser.add_argument("--lm-steps", type=int, default=800)
    parser.add_argument("--output-dir", type=Path, default=Path("runs/verified"))
    arguments = parser.parse_args()
    problem, directory = PROBLEMS[arguments.problem], arguments.output_dir / arguments.problem
    directory.mkdir(parents=True, exist_ok=True)
    initial = train_language_model(problem, directory, arguments.lm_steps)
    policy = train_policy(problem, initial, directory, arguments.steps)
    for name, run in (("language model", initial), ("policy", policy)):
        print(f"{name:15} mean reward {rewarded(problem, run, directory):.2f}")


if __name__ == "__main__":
    main()
