"""Sample outputs during training of models whose data has prompts: responses to the first ones."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from weft.decode.options import GenerationConfig
from weft.training.sample_outputs import Record, Samples, Writer

if TYPE_CHECKING:
    import torch

    from weft.runs.job import Job

NUM_PROMPTS = 5


def responses(job: Job, model: Any, device: torch.device) -> Writer:
    """Responses to each prompt, with the seed of the run: every validation uses the same random numbers."""
    from weft.decode.generate import Frame, generate

    config, tokenizer, template = job.config, job.tokenizer, job.config.data.read_template()
    dataset = config.datasets["valid" if "valid" in config.datasets else "train"]
    prompts = config.train.sample_prompts or [record.texts[0] for record in islice(dataset.records(), NUM_PROMPTS)]
    texts = [template.prompt(prompt) for prompt in prompts]
    longest = 1 + max(len(tokenizer.encode(text)) for text in texts)
    max_new_tokens = max(1, min(config.train.sample_max_new_tokens, config.data.max_length + 1 - longest))
    options = GenerationConfig(max_new_tokens=max_new_tokens, num_samples=config.train.num_samples, seed=config.seed)
    frame = Frame(tokenizer.eos_id, [tokenizer.bos_id])

    def write(model: Any) -> list[Record]:
        continuations = generate(model, tokenizer, texts, options, frame=frame, device=device)
        return [
            {"prompt": prompt, "sample": number, "text": sample.text, "seed": config.seed}
            for prompt, samples in zip(prompts, continuations, strict=True)
            for number, sample in enumerate(samples, 1)
        ]

    return write


SAMPLES = Samples(responses, prompts=True)
