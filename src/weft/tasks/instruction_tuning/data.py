"""The [data] section of instruction tuning."""

from __future__ import annotations

from weft.tasks.responses.data import DialogueDataConfig


class InstructionDataConfig(DialogueDataConfig):
    """Instructions with responses, and how they are trained on."""

    response_only: bool = True
    """Only the tokens of responses have a loss. If false, those of prompts have one as well."""
    packing: bool = False
    """attention only: pack several examples into a row of max_length tokens. They do not see each other."""
