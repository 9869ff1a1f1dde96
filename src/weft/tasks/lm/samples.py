"""Sample outputs of language models during training: continuations of prompts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weft.data.bos import read_bos
from weft.decode.options import GenerationConfig
from weft.errors import ConfigError
from weft.text.reading import check_text
from weft.training.sample_outputs import Record, Samples, Writer

if TYPE_CHECKING:
    import torch

    from weft.runs.job import Job


def continuations(job: Job, model: Any, device: torch.device) -> Writer:
    """Continuations of each prompt, with the seed of the run: every validation uses the same random numbers."""
    from weft.decode.generate import Frame, generate

    config, tokenizer = job.config, job.tokenizer
    prompts = [check_text(text, f"train.sample_prompts: {index}") for index, text in enumerate(config.train.sample_prompts, 1)]
    prompts = prompts or [""]
    max_new_tokens, max_positions = config.train.sample_max_new_tokens, model.max_positions
    bos_ids = read_bos(job.directory.path, tokenizer)
    if max_positions is not None:
        prompt_tokens = max(len(tokenizer.encode(prompt)) for prompt in prompts)
        if len(bos_ids) + prompt_tokens > max_positions:
            problem = f"{prompt_tokens} tokens exceed the model's limit of {max_positions - len(bos_ids)}"
            raise ConfigError("train.sample_prompts", problem, "shorten the longest prompt")
        # the last token is not an input
        max_new_tokens = min(max_new_tokens, max_positions + 1 - len(bos_ids) - prompt_tokens)
    options = GenerationConfig(max_new_tokens=max_new_tokens, num_samples=config.train.num_samples, seed=config.seed)
    frame = Frame(tokenizer.eos_id if config.data.read_as == "lines" else None, bos_ids)

    def write(model: Any) -> list[Record]:
        continuations = generate(model, tokenizer, prompts, options, frame=frame, device=device)
        return [
            {"prompt": prompt, "sample": number, "text": sample.text, "seed": config.seed}
            for prompt, samples in zip(prompts, continuations, strict=True)
            for number, sample in enumerate(samples, 1)
        ]

    return write


SAMPLES = Samples(continuations, prompts=True)
