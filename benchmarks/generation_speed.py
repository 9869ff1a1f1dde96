"""Speed of sampling from a small GPT, compared with nanoGPT and Hugging Face transformers: the same weights, one thread.

    python benchmarks/generation_speed.py --nanogpt DIRECTORY [--repeat 3]

A character-level GPT-2 of Tiny Shakespeare (4 layers, 4 heads, hidden size 128, 64 positions) is trained for a few steps,
exported, and loaded by transformers and by nanoGPT (a checkout of github.com/karpathy/nanoGPT). Each generates 63 characters
after one, with temperature 0.8: one text at a time with nanoGPT's `generate`, as its sample.py does, and 32 texts at once with
`generate` of transformers. Tokens per CPU second; the programs take turns.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from _common import SHARED_DATA, require_data, train_here, verdict
from transformers import GPT2LMHeadModel

from weft.interop.hf_export import export_model
from weft.runs.run import AnyRun

POSITIONS, TEMPERATURE, BATCH_SIZE, NUM_TEXTS = 64, 0.8, 32, 8
NEW_TOKENS = POSITIONS - 1
TARGETS = {"nanoGPT": 4.0, "transformers": 1.5}
MODEL: dict[str, Any] = {
    "arch": "transformer", "num_layers": 4, "num_heads": 4, "hidden_size": 128, "head_bias": False, "tie_embeddings": True,
}  # fmt: skip
TRAIN: dict[str, Any] = {"max_steps": 20, "batch_tokens": 768, "num_validations": 1, "device": "cpu"}


def load_nanogpt(directory: Path, hf: Any) -> Any:
    """nanoGPT's model with the weights of the exported one."""
    spec = importlib.util.spec_from_file_location("nanogpt_model", directory / "model.py")
    if spec is None or spec.loader is None:
        raise SystemExit(f"{directory} has no model.py")
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sizes = {"n_layer": 4, "n_head": 4, "n_embd": 128}
    model = module.GPT(module.GPTConfig(block_size=POSITIONS, vocab_size=hf.config.vocab_size, bias=True, dropout=0.0, **sizes))
    ours = hf.state_dict()
    with torch.no_grad():
        for name, weight in model.state_dict().items():
            if not name.endswith(".attn.bias"):  # a mask
                weight.copy_(ours[name].t() if ".c_" in name else ours[name])  # its linear layers are transposed
    return model.eval()


def tokens_per_second(work: Callable[[], int]) -> float:
    """Of CPU time."""
    start = time.process_time()
    count = work()
    return count / (time.process_time() - start)


def weft_texts(run: AnyRun, num_texts: int, seed: int) -> int:
    """Generate texts in one call; returns the number of new tokens. The opening of a text is one token."""
    options: dict[str, Any] = {"max_new_tokens": NEW_TOKENS, "temperature": TEMPERATURE, "seed": seed, "num_samples": num_texts}
    results = run.generate("", **options).ranked()
    count = sum(len(result.token_ids) for result in results)
    if count != num_texts * NEW_TOKENS:
        raise SystemExit(f"weft: {count} tokens, expected {num_texts * NEW_TOKENS}")
    return count


def workloads(run: AnyRun, hf: Any, nanogpt: Any) -> dict[str, dict[str, Callable[[], int]]]:
    """For each comparison, the work of weft and of the other program."""
    one, many = torch.ones(1, 1, dtype=torch.long), torch.ones(BATCH_SIZE, 1, dtype=torch.long)

    @torch.no_grad()
    def with_nanogpt() -> int:
        for _ in range(NUM_TEXTS):
            nanogpt.generate(one, NEW_TOKENS, temperature=TEMPERATURE)
        return NUM_TEXTS * NEW_TOKENS

    def with_transformers() -> int:
        options: dict[str, Any] = {
            "max_new_tokens": NEW_TOKENS,
            "min_new_tokens": NEW_TOKENS,
            "do_sample": True,
            "pad_token_id": 0,
        }
        output = hf.generate(many, attention_mask=torch.ones_like(many), temperature=TEMPERATURE, top_k=0, **options)
        return int(output[:, 1:].numel())

    found: dict[str, dict[str, Callable[[], int]]] = {}
    if nanogpt is not None:
        alone = lambda: sum(weft_texts(run, 1, seed) for seed in range(NUM_TEXTS))  # noqa: E731
        found["nanoGPT"] = {"weft": alone, "nanoGPT": with_nanogpt}
    found["transformers"] = {"weft": lambda: weft_texts(run, BATCH_SIZE, 0), "transformers": with_transformers}
    return found


def check_weights(run: AnyRun, hf: Any, nanogpt: Any) -> None:
    """Stop if the programs compute different probabilities."""
    tokens = torch.randint(3, hf.config.vocab_size, (2, POSITIONS))
    with torch.no_grad():
        expected = run.model.start(tokens)[0]
        others = [hf(tokens).logits[:, -1].log_softmax(-1)]
        others += [] if nanogpt is None else [nanogpt(tokens)[0][:, -1].log_softmax(-1)]
    for actual in others:
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=SHARED_DATA / "tinyshakespeare/input.txt")
    parser.add_argument("--nanogpt", type=Path, help="a checkout of nanoGPT")
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    require_data(parser, args.data, "--data FILE")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        data = {"train": str(args.data.resolve()), "valid": 0.1, "context_length": POSITIONS}
        values = {"task": "lm", "recommend": False, "data": data, "model": MODEL, "train": TRAIN}
        run, _ = train_here(values, directory / "run", directory)
        export_model(run, directory / "hf")
        hf: Any = GPT2LMHeadModel.from_pretrained(directory / "hf")
        hf.eval()
    nanogpt = None if args.nanogpt is None else load_nanogpt(args.nanogpt, hf)
    check_weights(run, hf, nanogpt)
    for peer, works in workloads(run, hf, nanogpt).items():
        for work in works.values():
            work()  # warms up
        rounds = [[tokens_per_second(work) for work in works.values()] for _ in range(args.repeat)]
        ours, theirs = (statistics.median(speeds) for speeds in zip(*rounds, strict=True))
        ratios = [first / second for first, second in rounds]
        ratio, target = statistics.median(ratios), TARGETS[peer]
        print(f"weft {ours:.0f}, {peer} {theirs:.0f} tokens/s", end="; ")
        print(f"ratio {ratio:.2f} ({min(ratios):.2f} to {max(ratios):.2f}); target {target}: {verdict(ratio >= target)}")


if __name__ == "__main__":
    main()
