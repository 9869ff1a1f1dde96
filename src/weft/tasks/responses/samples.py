"""Sample outputs during training: responses to prompts."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from weft.decode.options import GenerationConfig
from weft.text.reading import check_text
from weft.training.sample_outputs import Record, Samples, Writer

if TYPE_CHECKING:
    import torch

    from weft.runs.job import Job

NUM_PROMPTS = 3  # of the validation or training data, if the run file names none


def responses(job: Job, model: Any, device: torch.device) -> Writer:
    """Responses to each prompt, with the seed of the run: every validation uses the same random numbers."""
    from weft.decode.generate import Frame, generate

    config, tokenizer, template = job.config, job.tokenizer, job.config.data.read_template()
    prompts = [check_text(text, f"train.sample_prompts: {index}") for index, text in enumerate(config.train.sample_prompts, 1)]
    texts = [template.prompt(prompt) for prompt in prompts]
    if not texts:
        dataset = config.datasets["valid" if "valid" in config.datasets else "train"]
        texts = prompts = [record.prompts[0] for record in islice(dataset.records(), NUM_PROMPTS)]
    max_new_tokens = config.train.sample_max_new_tokens
    if model.max_positions is not None:
        longest = 1 + max(len(tokenizer.encode(text)) for text in texts)
        max_new_tokens = max(1, min(max_new_tokens, model.max_positions + 1 - longest))
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
