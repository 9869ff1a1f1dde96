"""Policy gradients and DPO: losses against their equations, rollouts, rewards, resuming, and refusals."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import tomli_w
import torch

import weft
from weft.errors import ConfigError, DataError, UsageError
from weft.models.config import GPT, LanguageModelConfig
from weft.models.lm import language_model
from weft.nn.experts import expert_layers
from weft.tasks.dpo.batching import PairBatch
from weft.tasks.dpo.objective import DPOObjective
from weft.tasks.policy_gradient.batching import RolloutBatch
from weft.tasks.policy_gradient.config import PolicyConfig
from weft.tasks.policy_gradient.losses import (
    clipped_policy_loss,
    generalized_advantages,
    group_normalized,
    kl_estimate,
    leave_one_out,
    whitened,
)
from weft.tasks.policy_gradient.objective import PolicyObjective
from weft.tasks.policy_gradient.rollout import (
    BANNED,
    checked_rewards,
    repetition,
    sample_responses,
    score_in_batches,
    score_tokens,
)

CPU = torch.device("cpu")
WORDS = ("apple", "river", "stone", "cloud", "tiger", "lamp")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("feedback")
    texts = [f"{a} {b}" for a in WORDS for b in WORDS]
    (folder / "text.txt").write_text("".join(f"{text}\n" for text in texts * 3))
    rows = [{"prompt": word} for word in WORDS]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pairs = [{"prompt": a, "chosen": " river", "rejected": f" {b}"} for a in WORDS for b in WORDS if b != "river"]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in pairs))
    labels = [(text, "wet" if "river" in text else "dry") for text in texts]
    (folder / "labels.tsv").write_text("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in labels))
    return folder


@pytest.fixture(scope="module")
def base(folder) -> weft.Run:
    return weft.train(
        {
            "task": "lm",
            "recommend": False,
            "data": {"train": str(folder / "text.txt"), "read_as": "lines", "context_length": 24},
            "tokenizer": {"type": "char"},
            "model": {"hidden_size": 32, "num_layers": 1},
            "train": {"max_steps": 60, "batch_tokens": 512, "device": "cpu", "num_validations": 1},
        },
        output_dir=folder / "lm",
    )


@pytest.fixture(scope="module")
def classifier(folder) -> weft.Run:
    values = {"task": "classification", "data": {"train": str(folder / "labels.tsv")}, "model": {"arch": "naive-bayes"}}
    return weft.train(values, output_dir=folder / "classifier")


def policy_file(folder: Path, **sections: dict) -> dict:
    train = {"max_steps": 8, "num_validations": 4, "batch_tokens": 512, "lr": 3e-3, "device": "cpu"}
    return {
        "task": "policy-gradient",
        "data": {"train": str(folder / "prompts.jsonl"), "max_length": 24, **sections.get("data", {})},
        "tokenizer": {"file": str(folder / "lm" / "tokenizer.json")},
        "model": {"hidden_size": 32, "num_layers": 1, "max_new_tokens": 8, **sections.get("model", {})},
        "train": {**train, "init_from": str(folder / "lm"), **sections.get("train", {})},
    }


def vowels(prompts: list[str], responses: list[str]) -> list[float]:
    return [sum(char in "aeiou" for char in text) / 8 for text in responses]


# ---- equations


def test_leave_one_out_and_group_normalization():
    rewards = torch.tensor([[1.0, 2.0, 6.0], [0.0, 0.0, 3.0]], dtype=torch.float64)
    expected = [[r - np.mean([row[j] for j in range(3) if j != i]) for i, r in enumerate(row)] for row in rewards.tolist()]
    assert leave_one_out(rewards).tolist() == pytest.approx(np.array(expected))
    normal = [(np.array(row) - np.mean(row)) / (np.std(row, ddof=1) + 1e-4) for row in rewards.tolist()]
    assert group_normalized(rewards).numpy() == pytest.approx(np.array(normal))


def test_generalized_advantages_equal_the_sum():
    generator = torch.Generator().manual_seed(0)
    rewards, values = (torch.randn(2, 5, dtype=torch.float64, generator=generator) for _ in range(2))
    mask = torch.tensor([[False, True, True, True, False], [True, True, True, True, True]])
    actual = generalized_advantages(rewards, values, mask, 0.9)
    for row, positions in enumerate(([1, 2, 3], [0, 1, 2, 3, 4])):
        for start, position in enumerate(positions):
            total = 0.0
            for step, later in enumerate(positions[start:]):
                following = [*positions, None][positions.index(later) + 1]
                after = 0.0 if following is None else values[row, following].item()
                total += 0.9**step * (rewards[row, later].item() + after - values[row, later].item())
            assert actual[row, position].item() == pytest.approx(total)
    assert actual[0, [0, 4]].tolist() == [0.0, 0.0]
    white = whitened(actual, mask)[mask]
    assert white.mean().item() == pytest.approx(0, abs=1e-9) and white.std().item() == pytest.approx(1, abs=1e-3)


def test_clipped_loss_and_kl_estimate():
    ratio, advantages = np.array([0.5, 0.9, 1.1, 2.0, 0.5, 2.0]), np.array([1.0, 1.0, 1.0, 1.0, -1.0, -1.0])
    expected = -np.minimum(ratio * advantages, ratio.clip(0.8, 1.2) * advantages)
    actual = clipped_policy_loss(torch.tensor(ratio).log(), torch.tensor(advantages), 0.2)
    assert actual.numpy() == pytest.approx(expected)
    p, q = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64), torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64)
    estimate = (p * kl_estimate(p.log(), q.log())).sum().item()
    assert estimate == pytest.approx((p * (p / q).log()).sum().item())


def objective_of(run: weft.Run, **options) -> PolicyObjective:
    config = PolicyConfig.model_validate({"hidden_size": 32, "num_layers": 1, **options}).with_defaults()
    return PolicyObjective(config, run.vocabulary, train=None, valid=None, device=CPU, batch_tokens=512)


def brute_log_probs(model, tokens: torch.Tensor, mask: torch.Tensor) -> list[list[float]]:
    """Log-probabilities of the targets, token by token, in the distribution without banned tokens."""
    rows = []
    for row, is_target in zip(tokens, mask, strict=True):
        values = []
        for position in is_target.nonzero().flatten().tolist():
            logits = model.head.logits(model(row[None, : position + 1])[0][0, -1]).double()
            logits[list(BANNED)] = -math.inf
            values.append((logits[row[position + 1]] - logits.logsumexp(0)).item())
        rows.append(values)
    return rows


@pytest.fixture
def rollout(base):
    tokens = sample_responses(
        base.model, [[1, 5, 6], [1, 7], [1, 8]] * 2, base.vocabulary, max_new_tokens=6, seed=3, device=CPU
    )
    torch.manual_seed(0)
    log_probs = brute_log_probs(base.model, tokens.tokens, tokens.mask)
    return tokens, log_probs


def as_rows(values: list[list[float]], mask: torch.Tensor) -> torch.Tensor:
    result = torch.zeros(mask.shape)
    result[mask] = torch.tensor([value for row in values for value in row])
    return result


@torch.no_grad()
@pytest.mark.parametrize("algorithm", ["rloo", "grpo"])
def test_losses_equal_the_equations(base, rollout, algorithm):
    """The formulas of trl's trainers, computed token by token in float64."""
    tokens, log_probs = rollout
    generator = torch.Generator().manual_seed(1)
    rewards = torch.randn(len(log_probs), generator=generator)
    old = [[value + 0.3 * torch.randn(1, generator=generator).item() for value in row] for row in log_probs]
    reference = [[value + 0.5 * torch.randn(1, generator=generator).item() for value in row] for row in log_probs]
    objective = objective_of(base, algorithm=algorithm, samples_per_prompt=3, kl_weight=0.2)
    ratio = as_rows(old, tokens.mask) - as_rows(reference, tokens.mask)
    advantages, returns = objective._advantages(base.model, tokens, rewards, ratio)
    pad = torch.nn.functional.pad
    parts = (tokens.mask, as_rows(old, tokens.mask), as_rows(reference, tokens.mask))
    batch = RolloutBatch(tokens.tokens, *(pad(part, (1, 0)) for part in parts), advantages, returns)
    loss = objective.loss(base.model, batch, None)
    expected = 0.0
    for row, (new, before, initial) in enumerate(zip(log_probs, old, reference, strict=True)):
        group = slice(row - row % 3, row - row % 3 + 3)
        if algorithm == "rloo":
            total = [
                r - 0.2 * (sum(o) - sum(i))
                for r, o, i in zip(rewards[group].tolist(), old[group], reference[group], strict=True)
            ]
            advantage = total[row % 3] - (sum(total) - total[row % 3]) / 2
            change = math.exp(sum(new) - sum(before))
            expected += -min(change * advantage, min(max(change, 0.8), 1.2) * advantage)
        else:
            values = rewards[group].double().numpy()
            advantage = (values[row % 3] - values.mean()) / (values.std(ddof=1) + 1e-4)
            terms = []
            for n, o, i in zip(new, before, initial, strict=True):
                change = math.exp(n - o)
                kl = math.exp(i - n) - (i - n) - 1
                terms.append(-min(change * advantage, min(max(change, 0.8), 1.2) * advantage) + 0.2 * kl)
            expected += np.mean(terms)
    assert loss.total.item() / 6 == pytest.approx(expected / 6, rel=1e-5, abs=1e-5)
    assert int(loss.count) == 6


def test_the_loss_of_ppo_equals_the_equations(base, rollout):
    tokens, log_probs = rollout
    model = weft.load(base.path).model
    model.value_head = torch.nn.Linear(32, 1)
    rewards, generator = torch.arange(6.0), torch.Generator().manual_seed(1)
    old = as_rows(
        [[value + 0.3 * torch.randn(1, generator=generator).item() for value in row] for row in log_probs], tokens.mask
    )
    objective = objective_of(base, algorithm="ppo", kl_weight=0.2, value_weight=0.5, gae_lambda=0.9)
    ratio = 0.1 * torch.ones_like(old).masked_fill(~tokens.mask, 0.0)
    with torch.no_grad():
        advantages, returns = objective._advantages(model, tokens, rewards, ratio)
        parts = (tokens.mask, old, old, advantages, returns)
        batch = RolloutBatch(tokens.tokens, *(torch.nn.functional.pad(part, (1, 0)) for part in parts))
        loss = objective.loss(model, batch, None)
        hidden = model(tokens.tokens[:, :-1])[0]
        values = model.value_head(hidden)[..., 0]
    all_advantages, policy, errors = [], [], []
    for row, new in enumerate(log_probs):
        positions = tokens.mask[row].nonzero().flatten().tolist()
        before, running, advantage = 0.0, 0.0, {}
        for position in reversed(positions):
            reward = -0.2 * 0.1 + (rewards[row].item() if position == positions[-1] else 0.0)
            running = reward + before - values[row, position].item() + 0.9 * running
            before, advantage[position] = values[row, position].item(), running
        all_advantages += [advantage[position] for position in positions]
        assert returns[row, positions].tolist() == pytest.approx(
            [advantage[p] + values[row, p].item() for p in positions], abs=1e-4
        )
        errors += [advantage[position] ** 2 for position in positions]
        policy += [math.exp(value - old[row, position].item()) for value, position in zip(new, positions, strict=True)]
    white = (np.array(all_advantages) - np.mean(all_advantages)) / (np.std(all_advantages, ddof=1) + 1e-4)
    change = np.array(policy)
    assert loss.total.item() == pytest.approx(-np.minimum(change * white, change.clip(0.8, 1.2) * white).sum(), abs=1e-3)
    assert loss.penalty.item() == pytest.approx(0.5 * sum(errors) / 2, rel=1e-4)
    assert int(loss.count) == len(change)


def test_padding_of_responses_is_not_routed_to_experts():
    torch.manual_seed(0)
    config = LanguageModelConfig(**{**GPT, "hidden_size": 16, "num_layers": 1, "num_experts": 4, "ffn_dim": 16}).with_defaults()
    model = language_model(config, vocab_size=20, context_length=8, vocabulary="")
    tokens, mask = torch.randint(3, 20, (2, 7)), torch.arange(6) < torch.tensor([[6], [2]])
    (layer,) = expert_layers(model).values()
    layer.start_recording()
    scores = score_tokens(model, tokens, mask)
    assert layer.stop_recording().num_tokens == 8
    alone = score_tokens(model, tokens[1:, :3], mask[1:, :2])
    torch.testing.assert_close(scores.log_probs[1:, :2], alone.log_probs)


def test_the_gradient_of_rloo_is_that_of_reinforce(base, rollout):
    tokens, _ = rollout
    objective = objective_of(base, algorithm="rloo", samples_per_prompt=3)
    advantages = torch.tensor([1.0, -2.0, 0.5, 0.0, 1.5, -1.0])[:, None]
    old = score_tokens(base.model, tokens.tokens, tokens.mask).log_probs.detach()
    parts = (torch.nn.functional.pad(part, (1, 0)) for part in (tokens.mask, old, old))
    batch = RolloutBatch(tokens.tokens, *parts, advantages, torch.zeros_like(advantages))
    weights = [weight for weight in base.model.parameters() if weight.requires_grad]
    actual = torch.autograd.grad(objective.loss(base.model, batch, None).total, weights, allow_unused=True)
    log_prob = score_tokens(base.model, tokens.tokens, tokens.mask).log_probs.sum(1)
    expected = torch.autograd.grad(-(advantages[:, 0] * log_prob).sum(), weights, allow_unused=True)
    for ours, theirs in zip(actual, expected, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_dpo_loss_equals_the_equation(base):
    torch.manual_seed(0)
    chosen = torch.tensor([[1, 5, 6, 7, 2], [1, 8, 9, 2, 0]])
    rejected = torch.tensor([[1, 5, 9, 2], [1, 8, 7, 2]])
    chosen_targets = torch.tensor([[False, False, True, True, True], [False, False, True, True, False]])
    rejected_targets = torch.tensor([[False, False, True, True]] * 2)
    reference = type(base.model).forward and weft.load(base.path).model
    for weight in reference.parameters():
        weight.add_(0.05 * torch.randn_like(weight))
    batch = PairBatch(chosen, chosen_targets, rejected, rejected_targets)

    def log_prob(model, tokens, targets) -> list[float]:
        result = []
        for row, is_target in zip(tokens, targets, strict=True):
            terms = [
                model.head(model(row[None, :position])[0][0, -1])[row[position]].item()
                for position in is_target.nonzero().flatten().tolist()
            ]
            result.append(sum(terms))
        return result

    for smoothing in (0.0, 0.2):
        objective = DPOObjective(valid=None, device=CPU, beta=0.3, smoothing=smoothing)
        objective.reference = reference
        sides = ((chosen, chosen_targets), (rejected, rejected_targets))
        rewards = [np.array(log_prob(base.model, *side)) - np.array(log_prob(reference, *side)) for side in sides]
        margins, wrong = 0.3 * (rewards[0] - rewards[1]), smoothing / 2
        expected = (1 - wrong) * np.log1p(np.exp(-margins)) + wrong * np.log1p(np.exp(margins))
        assert objective.loss(base.model, batch, None).total.item() == pytest.approx(expected.sum(), abs=1e-5)


def test_the_gradient_of_dpo_flows_through_the_model_alone(base):
    batch = PairBatch(
        torch.tensor([[1, 5, 6, 2]]),
        torch.tensor([[False, False, True, True]]),
        torch.tensor([[1, 5, 9, 2]]),
        torch.tensor([[False, False, True, True]]),
    )
    objective = DPOObjective(valid=None, device=CPU, beta=0.3)
    weights = list(base.model.parameters())
    (plain,) = torch.autograd.grad(objective.loss(base.model, batch, None).total, weights[:1])
    objective.reference = weft.load(base.path).model  # the same model: the margin is 0, and the gradient is that of sigmoid(0)
    loss = objective.loss(base.model, batch, None).total
    assert loss.item() == pytest.approx(math.log(2), abs=1e-5)
    (tied,) = torch.autograd.grad(loss, weights[:1])
    assert tied.abs().sum() > 0
    cosine = torch.nn.functional.cosine_similarity(plain.flatten(), tied.flatten(), dim=0).item()
    assert cosine == pytest.approx(1.0, abs=1e-4)


# ---- rollouts


def test_responses_depend_on_the_seed_and_their_row_alone(base):
    prompts = [[1, 5], [1, 6, 7], [1, 8]]
    kwargs = {"max_new_tokens": 8, "device": CPU}
    first = sample_responses(base.model, prompts, base.vocabulary, seed=1, **kwargs)
    second = sample_responses(base.model, prompts, base.vocabulary, seed=1, **kwargs)
    other = sample_responses(base.model, prompts, base.vocabulary, seed=2, **kwargs)
    alone = sample_responses(base.model, prompts[:1], base.vocabulary, seed=1, **kwargs)
    assert torch.equal(first.tokens, second.tokens) and first.texts != other.texts
    assert alone.texts[0] == first.texts[0]
    assert first.mask.sum(1).tolist() == first.lengths
    for row, prompt in enumerate(prompts):
        assert first.tokens[row, : len(prompt)].tolist() == prompt
        targets = first.tokens[row, 1:][first.mask[row]].tolist()
        assert base.vocabulary.decode([token for token in targets if token != 2]) == first.texts[row]
        assert 2 not in targets[:-1]


@torch.no_grad()
def test_scores_of_tokens_equal_those_of_single_tokens(base, rollout):
    tokens, log_probs = rollout
    actual, entropy = score_in_batches(base.model, tokens.tokens, tokens.mask, 16, entropy=True)
    assert actual[tokens.mask].tolist() == pytest.approx([value for row in log_probs for value in row], abs=1e-4)
    assert not actual[~tokens.mask].any() and not entropy[~tokens.mask].any()
    assert (entropy[tokens.mask] > 0).all()


def test_repetition():
    assert repetition(["a b a b a", "a b c", "a"]) == pytest.approx([0.5, 0.0, 0.0])


# ---- rewards


def locate(index: int) -> str:
    return f"prompts.jsonl:{index + 1}"


def fails_on(word: str):
    def reward(prompts, responses):
        if word in responses:
            raise ValueError(f"no {word}\nplease")
        return [1.0] * len(responses)

    return reward


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda prompts, responses: [1.0, math.nan], "prompts.jsonl:2: the reward function returned nan"),
        (lambda prompts, responses: ["x", 1.0], "prompts.jsonl:1: the reward function returned 'x'"),
        (lambda prompts, responses: [1.0], "prompts.jsonl:1: the reward function returned 1 values for 2 responses"),
        (fails_on("b"), "prompts.jsonl:2: the reward function raised ValueError: no b please"),
        (lambda prompts, responses: 1.0, "prompts.jsonl:1: the reward function raised TypeError"),
    ],
)
def test_rewards_that_are_no_numbers_name_the_prompt(function, message):
    with pytest.raises(DataError) as error:
        checked_rewards(function, ["p", "q"], ["a", "b"], locate)
    assert str(error.value).startswith(message)
    assert str(error.value).endswith("correct it and train again, which resumes at the last checkpoint")
    assert "\n" not in str(error.value)


def test_an_error_of_the_whole_batch_names_its_first_prompt():
    def reward(prompts, responses):
        if len(prompts) > 1:
            raise KeyError("x")
        return [1.0]

    with pytest.raises(DataError, match=r"prompts.jsonl:1: the reward function raised KeyError"):
        checked_rewards(reward, ["p", "q"], ["a", "b"], locate)


# ---- training


def curve(path: Path, name: str) -> list[float]:
    records = [json.loads(line) for line in (path / "metrics.jsonl").read_text().split("\n") if line]
    return [record[name] for record in records if name in record]


@pytest.mark.parametrize("algorithm", ["rloo", "ppo", "grpo"])
def test_a_policy_learns_from_a_function(folder, base, algorithm):
    options = {"algorithm": algorithm, "samples_per_prompt": 8, "kl_weight": 0.01}
    values = policy_file(folder, model=options, train={"max_steps": 16, "lr": 1e-2, "num_samples": 1, "batch_tokens": 1024})
    run = weft.train(values, output_dir=folder / algorithm, reward=vowels)
    rewards, divergence = curve(run.path, "valid_reward"), curve(run.path, "valid_kl")
    assert rewards[-1] > rewards[0] and divergence[-1] > 0
    assert len(curve(run.path, "valid_entropy")) == len(curve(run.path, "valid_length")) == 4
    samples = [json.loads(line) for line in (run.path / "samples.jsonl").read_text().split("\n") if line]
    assert samples[0]["prompt"] == "apple"
    assert set(run.evaluate().scores) == {"repetition", "length"}  # the function is not known any more


def test_rewards_and_judgments_of_runs(folder, base, classifier):
    data = {
        "reward_from": str(classifier.path),
        "reward_label": "wet",
        "judge_from": str(classifier.path),
        "judge_label": "dry",
    }
    run = weft.train(policy_file(folder, data=data), output_dir=folder / "classified")
    scores = run.evaluate()
    assert scores["reward"].value == pytest.approx(-scores["judge"].value)
    texts = [f"{word}{text}" for word, text in zip(WORDS, scores.predictions, strict=True)]
    probs = [prediction.probabilities["wet"] for prediction in classifier.predict(texts)]
    assert scores["reward"].value == pytest.approx(np.mean(np.log(np.array(probs) / (1 - np.array(probs)))))
    assert run.generate("river", max_new_tokens=4, seed=1).text == run.generate(["river"], max_new_tokens=4, seed=1)[0].text


def test_the_report_shows_curves_and_samples(folder, base, classifier):
    reward = {"reward_from": str(classifier.path), "reward_label": "wet", "valid": str(folder / "prompts.jsonl")}
    for name in ("first", "second"):
        values = policy_file(folder, data=reward, train={"max_steps": 4, "num_samples": 1})
        weft.train({**values, "seed": len(name)}, output_dir=folder / name)
    comparison = weft.compare([folder / "first", folder / "second"], output_dir=folder / "report")
    page = (folder / "report" / "report.html").read_text()
    assert comparison is not None
    for label in ("KL divergence", "length", "entropy", "repetition"):
        assert f"validation {label}" in page, label
    assert "Samples during training" in page


class Crash(RuntimeError):
    """Stands for the death of the process."""


@pytest.mark.parametrize("options", [{"algorithm": "rloo"}, {"algorithm": "ppo", "updates_per_rollout": 2}])
def test_a_run_that_dies_in_a_rollout_resumes_exactly(folder, base, tmp_path, options):
    values = policy_file(folder, model=options)
    expected = weft.train(values, output_dir=tmp_path / "whole", reward=vowels)
    calls = 0

    def dies(prompts, responses):
        nonlocal calls
        calls += 1
        if calls == 6:
            raise Crash("gone")
        return vowels(prompts, responses)

    with pytest.raises(DataError, match="the reward function raised Crash: gone"):
        weft.train(values, output_dir=tmp_path / "run", reward=dies)
    resumed = weft.train(values, output_dir=tmp_path / "run", reward=vowels)
    for name, weight in expected.model.state_dict().items():
        assert torch.equal(weight, resumed.model.state_dict()[name]), name
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == (tmp_path / "whole" / "metrics.jsonl").read_bytes()


@pytest.mark.slow
def test_killed_rollouts_resume_exactly(folder, base, classifier, tmp_path):
    values = policy_file(folder, data={"reward_from": str(classifier.path), "reward_label": "wet"}, train={"max_steps": 40})
    (tmp_path / "run.toml").write_text(tomli_w.dumps(values))
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    command = [sys.executable, "-m", "weft", "train", str(tmp_path / "run.toml"), "-q", "-o"]
    subprocess.run([*command, str(whole)], check=True)
    for size in (400, 2500, 4500):  # bytes of the log, which grows with the steps
        process = subprocess.Popen([*command, str(killed)])
        while process.poll() is None and (
            not (killed / "metrics.jsonl").exists() or (killed / "metrics.jsonl").stat().st_size < size
        ):
            time.sleep(0.01)
        process.kill()
        process.wait()
    subprocess.run([*command, str(killed)], check=True)
    for name in ("model.safetensors", "metrics.jsonl"):
        assert (killed / name).read_bytes() == (whole / name).read_bytes(), name


def test_dpo_learns_the_preference(folder, base):
    values = policy_file(folder, train={"max_steps": 12, "lr": 3e-3})
    values |= {"task": "dpo", "data": {"train": str(folder / "pairs.jsonl"), "valid": 0.2, "max_length": 24}}
    values["model"].pop("max_new_tokens")
    run = weft.train(values, output_dir=folder / "dpo")
    evaluation = run.evaluate()
    assert evaluation["accuracy"].value > 80
    assert curve(run.path, "valid_log_loss")[-1] < math.log(2)
    ours, theirs = (model.score(("stone", " river")).log_prob for model in (run, _as_dpo(run, base)))
    assert ours > theirs
    values["data"]["max_length"] = 10
    values["data"]["skip_long"] = False
    with pytest.raises(DataError, match=r"prompt and response have \d+ tokens, more than data.max_length \(10\)"):
        weft.train(values, output_dir=folder / "short")


def _as_dpo(run: weft.Run, base: weft.Run) -> weft.Run:
    """The initial model in the place of the trained one."""
    other = weft.load(run.path)
    other.__dict__["model"] = base.model
    return other


# ---- refusals


@pytest.mark.parametrize(
    ("sections", "reward", "message"),
    [
        ({}, None, "data.reward_from: there is nothing to learn from; set it to a run, or pass a function to weft.train: reward=function"),
        ({"data": {"reward_from": "lm"}}, vowels, "data.reward_from: a reward function is given as well; use one of them"),
        ({"data": {"reward_from": "lm"}}, None, "has task 'lm', which gives no rewards; use a reward model or a classifier"),
        ({"data": {"reward_from": "classifier"}}, None, "is a classifier; use one of dry, wet"),
        ({"data": {"reward_from": "classifier", "reward_label": "hot"}}, None, "has no label 'hot'; use one of dry, wet"),
        ({"data": {"reward_label": "wet"}}, vowels, "data.reward_label: not used without reward_from; set reward_from"),
        ({"model": {"samples_per_prompt": 1}}, vowels, "model.samples_per_prompt: must be at least 2 for rloo, which compares responses"),
        ({"model": {"gae_lambda": 0.9}}, vowels, "model.gae_lambda: not used with algorithm 'rloo'; remove it"),
        ({"model": {"max_new_tokens": 24}}, vowels, "data.max_length: 24 leaves no room for prompts beside model.max_new_tokens (24); increase it"),
        ({"train": {"init_from": None}}, vowels, "train.init_from: a policy needs a language model to start from; set it to a run"),
    ],
)  # fmt: skip
def test_impossible_runs_are_refused(folder, base, classifier, sections, reward, message):
    values = policy_file(folder, **sections)
    if "reward_from" in values["data"]:
        values["data"]["reward_from"] = str(folder / values["data"]["reward_from"])
    if values["train"]["init_from"] is None:
        del values["train"]["init_from"]
    with pytest.raises(ConfigError) as error:
        weft.train(values, output_dir=folder / "refused", reward=reward)
    assert str(error.value).endswith(message)


def test_the_loss_of_prompts_alone_is_refused(folder, base):
    from weft.tasks.policy_gradient.batching import PromptBatch

    with pytest.raises(UsageError, match="loss: the loss of a policy needs responses with rewards; use the run that it starts"):
        objective_of(base).loss(base.model, PromptBatch(torch.arange(2)), None)


def test_dpo_needs_an_initial_model(folder, base):
    values = policy_file(folder)
    values |= {"task": "dpo", "data": {"train": str(folder / "pairs.jsonl")}, "train": {"max_steps": 1}}
    values["model"].pop("max_new_tokens")
    with pytest.raises(ConfigError, match=r"train.init_from: DPO needs a language model to start from; set it to a run"):
        weft.train(values, output_dir=folder / "refused")


def test_long_prompts_are_refused_or_counted_and_skipped(folder, base, tmp_path):
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "apple"}\n{"prompt": "apple river stone cloud"}\n')
    values = policy_file(folder, data={"train": str(tmp_path / "prompts.jsonl")}, train={"max_steps": 1})
    with pytest.raises(DataError) as error:
        weft.train(values, output_dir=tmp_path / "run", reward=vowels)
    expected = f"{tmp_path / 'prompts.jsonl'}:2: the prompt has 24 tokens, and 16 fit beside model.max_new_tokens"
    assert str(error.value) == f"{expected}; increase data.max_length or set data.skip_long = true"
    notes = []

    class Callback(weft.TrainCallback):
        def on_note(self, text: str) -> None:
            notes.append(text)

    values["data"]["skip_long"] = True
    weft.train(values, output_dir=tmp_path / "run", reward=vowels, callback=Callback())
    assert "train: 1 prompt leaves no room for a response and is skipped" in notes


def test_rewards_of_a_reward_model_have_no_labels(folder, base, tmp_path):
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(f'{{"chosen": "a river {word}", "rejected": "a {word}"}}\n' for word in WORDS))
    values = {"task": "reward-model", "data": {"train": str(path)}, "model": {"arch": "linear"}}
    reward = weft.train(values, output_dir=tmp_path / "reward")
    run = weft.train(
        policy_file(folder, data={"reward_from": str(reward.path)}, train={"max_steps": 1}), output_dir=tmp_path / "run"
    )
    scores = run.evaluate()
    texts = [f"{word}{text}" for word, text in zip(WORDS, scores.predictions, strict=True)]
    assert scores["reward"].value == pytest.approx(np.mean([item.value for item in reward.predict(texts)]))
    data = {"reward_from": str(reward.path), "reward_label": "x"}
    with pytest.raises(ConfigError, match=r"data.reward_label: .* has no labels; remove it"):
        weft.train(policy_file(folder, data=data), output_dir=tmp_path / "refused")
