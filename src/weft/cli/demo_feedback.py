"""The demo of feedback: a small language model of reviews learns to be positive, with rewards of a reward model.

The reviews are generated. Each has six opinions, good or bad independently of each other, so that the number of good ones
varies, and a review with six is more than two standard deviations above the mean. The reward model has learned from pairs of
reviews; a classifier, which learned from other reviews, judges whether the policy has become positive or exploits the reward.
"""

from __future__ import annotations

import json as json_format
import random
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from weft.cli.output import status, write, write_json, write_styled
from weft.text.table_layout import columns

if TYPE_CHECKING:
    from weft.comparison.results import RunResults
    from weft.runs.run import AnyRun

TITLE, METRIC = "Can a language model learn to be positive?", "reward"
INTRO = "Teaching a small language model of reviews to be positive (generated reviews)"
THINGS = (
    *("film", "book", "soup", "play", "room", "garden", "museum", "concert", "breakfast"),
    *("story", "ending", "music", "bed", "view", "waiter", "game", "song", "walk"),
)
PRAISE = ["wonderful", "clever", "warm", "charming", "fresh", "lovely", "bright", "funny"]
BLAME = ["dull", "cold", "bland", "noisy", "dirty", "slow", "rude", "stale"]
NUM_OPINIONS = 6
NUM_REVIEWS = 3000  # for the language model, and for the judge
NUM_PAIRS = 600  # for the reward model
WRONG_PAIRS = 0.1  # fraction of the pairs whose worse review was chosen
NUM_SAMPLES = 8  # reviews per opening in the table
DATA = ("reviews.txt", "labels.tsv", "pairs.jsonl", "openings.jsonl")
POLICIES = ("rloo", "ppo")
MODEL: dict[str, Any] = {"arch": "gpt", "num_layers": 2, "hidden_size": 64}
POLICY: dict[str, Any] = {**MODEL, "max_new_tokens": 48, "kl_weight": 0.1}
POLICY_DATA: dict[str, Any] = {
    "train": "openings.jsonl", "valid": "openings.jsonl", "reward_from": "reward", "judge_from": "judge", "judge_label": "good",
    "max_length": 64,
}  # fmt: skip
LM_TRAIN: dict[str, Any] = {"max_steps": 300, "batch_tokens": 2048, "num_validations": 3}
TRAIN: dict[str, Any] = {"init_from": "lm", "max_steps": 100, "lr": 1e-3, "batch_tokens": 4096, "num_validations": 10}


# ---- reviews


def write_review(rng: random.Random) -> tuple[str, int]:
    """A review, and its number of good opinions."""
    opinions = [rng.random() < 0.5 for _ in range(NUM_OPINIONS)]
    clauses = [f"the {rng.choice(THINGS)} was {rng.choice(PRAISE if good else BLAME)}" for good in opinions]
    text = ", ".join(clauses[:-1]) + f" and {clauses[-1]}."
    return text[0].upper() + text[1:], sum(opinions)


def write_pair(rng: random.Random) -> str:
    """Two reviews, of which usually the one with more good opinions was chosen."""
    while True:
        (first, first_good), (second, second_good) = write_review(rng), write_review(rng)
        if first_good != second_good:
            break
    chosen, rejected = (first, second) if first_good > second_good else (second, first)
    if rng.random() < WRONG_PAIRS:
        chosen, rejected = rejected, chosen
    return json_format.dumps({"chosen": chosen, "rejected": rejected})


def write_data(output_dir: Path) -> None:
    """Write the reviews, the labels, the pairs and the openings, unless they exist."""
    from weft import files
    from weft.runs.run_dir import make_directory

    if all((output_dir / name).exists() for name in DATA):
        return
    rng = random.Random(0)
    make_directory(output_dir)
    reviews = [write_review(rng)[0] for _ in range(NUM_REVIEWS)]
    labeled = [write_review(rng) for _ in range(NUM_REVIEWS)]
    rows = [f"{text}\t{'good' if good > NUM_OPINIONS / 2 else 'bad'}\n" for text, good in labeled if good != NUM_OPINIONS / 2]
    pairs = [write_pair(rng) + "\n" for _ in range(NUM_PAIRS)]
    openings = [json_format.dumps({"prompt": f"The {thing} was"}) + "\n" for thing in THINGS]
    texts = ("\n".join(reviews) + "\n", "text\tlabel\n" + "".join(rows), "".join(pairs), "".join(openings))
    for name, text in zip(DATA, texts, strict=True):
        files.write_text(output_dir / name, text)


def run_files() -> dict[str, dict[str, Any]]:
    lm = {"data": {"train": "reviews.txt", "read_as": "lines", "valid": 0.05, "context_length": 64}, "model": MODEL}
    files: dict[str, dict[str, Any]] = {
        "lm": {"task": "lm", **lm, "tokenizer": {"type": "word"}, "train": LM_TRAIN},
        "reward": {
            "task": "reward-model",
            "data": {"train": "pairs.jsonl", "valid": 0.2},
            "model": {"arch": "linear", "length_feature": False},
        },
        "judge": {"task": "classification", "data": {"train": "labels.tsv", "valid": 0.2}, "model": {"arch": "naive-bayes"}},
    }
    for algorithm in POLICIES:
        model = {**POLICY, "algorithm": algorithm}
        files[algorithm] = {"task": "policy-gradient", "data": POLICY_DATA, "model": model, "train": TRAIN}
    return {name: {"recommend": False, **values} for name, values in files.items()}


def compared() -> Sequence[str]:
    return POLICIES


# ---- results


class Row(NamedTuple):
    """One model of the table: means over its reviews."""

    model: str
    reward: float
    deviation: float  # standard deviation of the rewards
    judge: float
    kl: float  # of the last validation
    repetition: float  # in percent
    length: float  # in tokens


def measure(name: str, model: AnyRun, policy: AnyRun, kl: float) -> tuple[Row, list[str]]:
    """Rewards and judgments of the reviews of a model, with the reward and the judge of a policy, and the reviews."""
    import numpy as np

    from weft.tasks.policy_gradient.rewards import run_rewards
    from weft.tasks.policy_gradient.rollout import repetition

    data = policy.config.data
    openings = [record.texts[0] for record in policy.config.datasets["valid"].records()]
    outputs = model.generate(openings, max_new_tokens=policy.config.model.max_new_tokens, num_samples=NUM_SAMPLES)
    samples = [(opening, sample) for opening, output in zip(openings, outputs, strict=True) for sample in output.ranked()]
    prompts, texts = [opening for opening, _ in samples], [sample.text for _, sample in samples]
    rewards, judgments = (np.array(run_rewards(data, kind, "cpu")(prompts, texts)) for kind in ("reward", "judge"))
    row = Row(
        name,
        float(rewards.mean()),
        float(rewards.std()),
        float(judgments.mean()),
        kl,
        100 * float(np.mean(repetition(texts))),
        float(np.mean([len(sample.token_ids) for _, sample in samples])),
    )
    return row, [prompt + text for prompt, text in zip(prompts, texts, strict=True)]


def curve(run_dir: Path) -> list[dict[str, float]]:
    """Step, KL divergence, reward and judgment at each validation."""
    from weft.text.reading import read_file_text

    records = [json_format.loads(line) for line in read_file_text(run_dir / "metrics.jsonl").split("\n") if line]
    names = {"step": "step", "kl": "valid_kl", "reward": "valid_reward", "judge": "valid_judge"}
    return [{name: record[key] for name, key in names.items()} for record in records if "valid_kl" in record]


HEAD = ["   model", "reward", "s.d.", "judge", "KL (nats)", "repetition", "tokens"]


def show(output_dir: Path, results: Mapping[str, RunResults], *, json: bool, quiet: bool) -> None:
    """Print the rewards of the models, reviews before and after, and reward against KL divergence."""
    from weft.runs.load import load, with_model

    policies = {name: with_model(load(output_dir / name)) for name in POLICIES}
    curves = {name: curve(output_dir / name) for name in POLICIES}
    base, before = measure("lm", with_model(load(output_dir / "lm")), policies[POLICIES[0]], 0.0)
    rows, reviews = [base], {"lm": before}
    for name, policy in policies.items():
        row, reviews[name] = measure(name, policy, policy, curves[name][-1]["kl"])
        rows.append(row)
    if json:
        gains = {row.model: (row.reward - base.reward) / base.deviation for row in rows[1:]}
        listed = [row._asdict() for row in rows]
        write_json({"models": listed, "gains": gains, "curves": curves, "report": str(output_dir / "report.html")})
        return
    cells = [[f"   {row.model}", f"{row.reward:.2f}", f"{row.deviation:.2f}", f"{row.judge:.2f}", f"{row.kl:.1f}",
              f"{row.repetition:.1f}%", f"{row.length:.0f}"] for row in rows]  # fmt: skip
    write(f"\n{columns([HEAD, *cells])}")
    for row in rows[1:]:
        write(f"\n{row.model}: reward up by {(row.reward - base.reward) / base.deviation:.1f} standard deviations")
    write("\n")
    for name, texts in reviews.items():
        write_styled([(f"\n{'before' if name == 'lm' else 'after'} ({name})", "bold")])
        write("".join(f"   {text}\n" for text in texts[:: NUM_SAMPLES * 6]))
    for name, points in curves.items():
        write_styled([(f"\nreward against KL divergence ({name})", "bold")])
        table = [
            [f"   {point['step']:.0f}", f"{point['kl']:.2f}", f"{point['reward']:.2f}", f"{point['judge']:.2f}"]
            for point in points
        ]
        write(columns([["   step", "KL", "reward", "judge"], *table]))
    run = shlex.quote(str(output_dir / POLICIES[0]))
    status(f'\nReport: {output_dir / "report.html"}\nNext: weft generate {run} "The soup was"', quiet=quiet)
