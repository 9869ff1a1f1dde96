"""The [data] and [model] sections of direct preference optimization."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from weft.data.config import datasets
from weft.data.dataset import Dataset
from weft.data.formats import TableRecord
from weft.tasks.responses.model import ResponseModelConfig
from weft.tasks.responses.preferences import PreferenceFormat
from weft.tasks.responses.template import PROMPT, RESPONSE, TemplateConfig


class PairDataConfig(TemplateConfig):
    """Prompts with a chosen and a rejected response."""

    template: str = PROMPT + RESPONSE
    """Text of a turn, with the places {prompt} and {response}. Default: that of the initial run."""
    prompt_column: str = "prompt"
    """Column or JSON key of the prompt."""
    chosen_column: str = "chosen"
    """Column of the preferred response."""
    rejected_column: str = "rejected"
    """Column of the other response."""
    max_length: int = Field(512, ge=4, le=2**31 - 1)
    """Maximum length of prompt and response in tokens, and the attention span."""
    skip_long: bool = True
    """Skip and count pairs that are longer. If false, they are an error."""

    def sources(self, base: Path) -> dict[str, Dataset[TableRecord]]:
        """The data sets of train, valid and test, if set; paths are relative to `base`, the directory of the run file."""
        names = (self.prompt_column, self.chosen_column, self.rejected_column)
        form = PreferenceFormat(names, (), self.encoding, delimiter=self.delimiter, sheet=self.sheet)
        return datasets(base, form, self)


class DPOConfig(ResponseModelConfig):
    """A language model that is trained on preferences between responses."""

    dpo_beta: float = Field(0.1, gt=0.0)
    """Strength of the tie to the initial model: rewards are beta times the log-ratio of probabilities."""
