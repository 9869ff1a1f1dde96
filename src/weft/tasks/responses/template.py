"""The template of a conversation: the text around prompts and responses. It is part of [data], so that a run stores it.

A response ends with the EOS token, so a template ends with the place of the response. The next turn follows the EOS token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Self

from pydantic import model_validator

from weft.config import invalid
from weft.data.config import ImportableTableFilesConfig

PROMPT, RESPONSE, SYSTEM = "{prompt}", "{response}", "{system}"


class Turn(NamedTuple):
    """A prompt, and the response to it."""

    prompt: str
    response: str


class Template(NamedTuple):
    """The text around the prompt and the response of a turn, and around the system message before the first turn."""

    turn: str
    system: str

    def prompt(self, text: str) -> str:
        """A prompt with the text around it, up to the response."""
        # not str.format: a prompt may contain braces
        return self.turn.removesuffix(RESPONSE).replace(PROMPT, text)

    def prompts(self, system: str, texts: Sequence[str]) -> tuple[str, ...]:
        """The text before each response: a prompt with the text around it; the first follows the system message."""
        first = self.system.replace(SYSTEM, system) if system else ""
        return tuple((first if number == 0 else "") + self.prompt(text) for number, text in enumerate(texts))


class TemplateConfig(ImportableTableFilesConfig):
    """Data whose prompts are put into a template."""

    template: str = f"### Instruction:\n{PROMPT}\n\n### Response:\n{RESPONSE}"
    """Text of a turn, with the places {prompt} and {response}. Prompts are put into it when the model is used, too."""
    system_template: str = f"### System:\n{SYSTEM}\n\n"
    """Text of a system message before the first turn, with the place {system}."""

    @model_validator(mode="after")
    def check_template(self) -> Self:
        if RESPONSE not in self.template:
            raise invalid("template", "has no place for the response", "add {response} at its end")
        if not self.template.endswith(RESPONSE) or self.template.count(RESPONSE) > 1:
            raise invalid("template", "{response} must occur once, at the end, where the EOS token follows")
        if self.template.count(PROMPT) != 1:
            raise invalid("template", f"{{prompt}} must occur once, got {self.template.count(PROMPT)} times")
        if self.system_template.count(SYSTEM) != 1:
            raise invalid("system_template", f"{{system}} must occur once, got {self.system_template.count(SYSTEM)} times")
        return self

    def read_template(self) -> Template:
        return Template(self.template, self.system_template)
