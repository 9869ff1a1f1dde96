"""The first training texts with the noise of the first epoch, for `weft check --show-examples`."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from weft.data.config import training
from weft.data.noise import join_texts
from weft.tasks.denoising.corruption import Corrupter
from weft.tasks.denoising.data import texts
from weft.text.noise_tokenizer import NoiseTokenizer
from weft.text.tokenizers import Tokenizer

if TYPE_CHECKING:
    from weft.runs.config import RunConfig


def training_examples(config: RunConfig, tokenizer: Tokenizer, count: int) -> list[dict[str, str]]:
    """The corrupted text and the target of the first `count` training texts."""
    data, noisy = config.data, NoiseTokenizer(tokenizer, config.data.num_sentinels or 0)
    first = list(islice(texts(training(config.datasets)), count))
    corrupter = Corrupter(data, tokenizer)
    tokens = [ids[: corrupter.max_tokens] for ids in tokenizer.encode_batch(first)]
    corrupted = corrupter.corrupt(join_texts(tokens), np.arange(len(tokens)), seed=config.seed, epoch=0)
    return [
        {"corrupted": noisy.decode(source), "target": noisy.decode(target)}
        for source, target in zip(corrupted.source.split(), corrupted.target.split(), strict=True)
    ]
