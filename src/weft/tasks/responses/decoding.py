"""How models that respond score and generate texts, and how they are explained."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.tasks.responses.predict import chat, frame_chat, frame_prompts, generate, prompt_ids, score, stream
from weft.tasks.spec import Decode
from weft.text.tokenizers import Tokenizer

if TYPE_CHECKING:
    from weft.tasks.spec import Explain

BEAM_SIZE, MAX_NEW_TOKENS = 3, 100

DECODE: Decode[str] = Decode(
    score,
    prompt_ids,
    max_new_tokens=lambda run, text: MAX_NEW_TOKENS,
    eos_id=lambda run: Tokenizer.eos_id,
    suppressed_tokens=lambda run: [Tokenizer.unk_id, Tokenizer.bos_id],
    beam_size=BEAM_SIZE,
    generate=generate,
    stream=stream,
    chat=chat,
    frame_prompts=frame_prompts,
    frame_chat=frame_chat,
    scores_pairs=True,
    echoes_prompt=False,
    invalid_prompts=lambda run, prompts, options: run.predictor.invalid_prompts(prompts, options),
    is_single_line=lambda run: False,
)


def find_explain() -> Explain:
    from weft.tasks.responses.explain import EXPLAIN

    return EXPLAIN
