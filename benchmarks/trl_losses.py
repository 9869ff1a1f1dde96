"""The losses of DPO and RLOO against those of trl, on the same weights and the same batch: a small GPT-2 with random weights,
imported from Transformers. Needs the packages trl, accelerate and datasets.

    python benchmarks/trl_losses.py
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.nn.functional as F

import weft
from weft.cli.main import main as run_weft
from weft.tasks.dpo.batching import PairBatch
from weft.tasks.dpo.objective import DPOObjective
from weft.tasks.policy_gradient import rollout
from weft.tasks.policy_gradient.batching import RolloutBatch
from weft.tasks.policy_gradient.config import PolicyConfig
from weft.tasks.policy_gradient.objective import PolicyObjective

PROMPT, RESPONSE, ROWS, BETA = 4, 5, 3, 0.3  # tokens, tokens, rows, weight of the KL divergence
CPU = torch.device("cpu")


def make_model(directory: Path) -> Any:
    """A GPT-2 with random weights and a tokenizer of bytes, saved by Transformers."""
    transformers, tokenizers = import_module("transformers"), import_module("tokenizers")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=300, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet)
    tokenizer.train_from_iterator(["a text of bytes and a few subwords, subwords, subwords"], trainer)
    size = tokenizer.get_vocab_size()
    config = transformers.GPT2Config(
        vocab_size=size, n_positions=32, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
    )
    model, end = transformers.GPT2LMHeadModel(config).eval(), "<|endoftext|>"
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=end, eos_token=end, pad_token=end)
    model.save_pretrained(directory)
    fast.save_pretrained(directory)
    return transformers.AutoModelForCausalLM.from_pretrained(directory).eval()  # trl looks for the directory


def token_ids(ours: Any, theirs: Any) -> dict[int, int]:
    """The ID in Transformers of each of our tokens, by equal embeddings."""
    rows, others = ours.embedding.weight.detach(), theirs.transformer.wte.weight.detach()
    distances = torch.cdist(rows.double(), others.double())
    return {index: int(row.argmin()) for index, row in enumerate(distances) if float(row.min()) < 1e-6}


def compare_dpo(ours: Any, our_initial: Any, theirs: Any, their_initial: Any, batch: Any) -> tuple[float, float]:
    """The mean loss of both."""
    trl, datasets, transformers = (import_module(name) for name in ("trl", "datasets", "transformers"))
    (prompts, chosen, rejected), ids, name = batch
    args = trl.DPOConfig(
        output_dir=f"{name}/dpo", beta=BETA, report_to=[], use_cpu=True, bf16=False, gradient_checkpointing=False
    )
    data = datasets.Dataset.from_list([{"prompt": "a", "chosen": "b", "rejected": "c"}] * 4)
    tokenizer = transformers.AutoTokenizer.from_pretrained(f"{name}/gpt2")
    trainer = trl.DPOTrainer(model=theirs, ref_model=their_initial, args=args, train_dataset=data, processing_class=tokenizer)
    rows = torch.cat([torch.cat([prompts, chosen], 1), torch.cat([prompts, rejected], 1)])
    mask = (torch.arange(PROMPT + RESPONSE) >= PROMPT).expand(len(rows), -1)
    inputs = {"input_ids": ids(rows), "attention_mask": torch.ones_like(rows), "completion_mask": mask.long()}
    expected = trainer._compute_loss(theirs.eval(), inputs, False)
    objective = DPOObjective(valid=None, device=CPU, beta=BETA)
    objective.reference = our_initial
    loss = objective.loss(ours, PairBatch(rows[:ROWS], mask[:ROWS], rows[ROWS:], mask[ROWS:]), None)
    return float(loss.total.detach()) / ROWS, float(expected.detach())


def compare_rloo(ours: Any, our_initial: Any, theirs: Any, vocabulary: Any, batch: Any) -> tuple[float, float]:
    """The mean loss of both, for advantages by our code."""
    trl, datasets, transformers = (import_module(name) for name in ("trl", "datasets", "transformers"))
    (prompts, chosen, _), ids, name = batch
    args = trl.RLOOConfig(
        output_dir=f"{name}/rloo", report_to=[], use_cpu=True, bf16=False, num_generations=ROWS, beta=BETA,
        per_device_train_batch_size=ROWS, gradient_checkpointing=False,
    )  # fmt: skip
    tokenizer = transformers.AutoTokenizer.from_pretrained(f"{name}/gpt2")
    data = datasets.Dataset.from_list([{"prompt": "a"}] * 4)

    def no_reward(completions: Any, prompts: Any = None, completion_ids: Any = None, trainer_state: Any = None) -> list[float]:
        return [0.0] * len(completions)

    trainer = trl.RLOOTrainer(model=theirs, reward_funcs=no_reward, args=args, train_dataset=data, processing_class=tokenizer)
    tokens = torch.cat([prompts, chosen], 1)
    mask = (torch.arange(1, PROMPT + RESPONSE) >= PROMPT).expand(ROWS, -1)
    with torch.no_grad():
        log_probs, initial = (rollout.score_tokens(model, tokens, mask).log_probs for model in (ours, our_initial))
    old = (log_probs + 0.2 * torch.randn(log_probs.shape)).masked_fill(~mask, 0.0)
    config = PolicyConfig.model_validate({"samples_per_prompt": ROWS, "kl_weight": BETA}).with_defaults()
    objective = PolicyObjective(config, vocabulary, train=None, valid=None, device=CPU, batch_tokens=512)
    rewards = torch.tensor([1.0, -0.5, 0.3])
    responses = rollout.Responses(tokens, mask, [""] * ROWS, [RESPONSE] * ROWS)
    advantages, returns = objective._advantages(ours, responses, rewards, old - initial)
    padded = [F.pad(part, (1, 0)) for part in (mask, old, initial)]
    rolled = RolloutBatch(tokens, padded[0], padded[1], padded[2], advantages, returns)
    loss = objective.loss(ours, rolled, None)
    total = rewards - BETA * (old - initial).sum(1)
    inputs = {
        "prompt_ids": ids(prompts), "prompt_mask": torch.ones_like(prompts), "completion_ids": ids(chosen),
        "completion_mask": torch.ones_like(chosen), "old_logps": old.sum(1),
        "advantages": total - (total.sum() - total) / (ROWS - 1),
    }  # fmt: skip
    return float(loss.total.detach()) / ROWS, float(trainer._compute_loss(theirs.eval(), inputs).detach())


def main() -> None:
    torch.manual_seed(0)
    with TemporaryDirectory() as name:
        theirs, their_initial = make_model(Path(name) / "gpt2"), make_model(Path(name) / "other")
        their_initial.load_state_dict(theirs.state_dict())
        run_weft(["import", f"{name}/gpt2", "--output-dir", f"{name}/run", "--quiet"])
        run = weft.load(f"{name}/run")
        ours, our_initial = run.model, weft.load(f"{name}/run").model
        with torch.no_grad():  # another initial model, in the same way on both sides
            their_initial.transformer.ln_f.weight.mul_(1.3)
            our_initial.stack.final_norm.weight.mul_(1.3)
        mapping = token_ids(ours, theirs)
        usable = torch.tensor([index for index in mapping if index > 2])  # no special tokens
        rollout.BANNED = tuple(index for index in range(3) if index not in mapping)  # trl bans no tokens
        table = torch.zeros(len(ours.embedding.weight), dtype=torch.long)
        table[list(mapping)] = torch.tensor(list(mapping.values()))
        sides = tuple(usable[torch.randint(len(usable), (ROWS, size))] for size in (PROMPT, RESPONSE, RESPONSE))
        batch = sides, lambda rows: table[rows], name
        for label, (actual, expected) in (
            ("DPO", compare_dpo(ours, our_initial, theirs, their_initial, batch)),
            ("RLOO", compare_rloo(ours, our_initial, theirs, run.vocabulary, batch)),
        ):
            print(f"{label}: weft {actual:.7f}, trl {expected:.7f}, difference {abs(actual - expected):.1e}")


if __name__ == "__main__":
    main()
