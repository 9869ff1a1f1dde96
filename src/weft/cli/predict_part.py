"""Predictions of some records of a batch, as values that another process can print."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from weft.cli.inputs import problems_in
from weft.cli.usage import with_flags
from weft.tasks.lines import Lines
from weft.tasks.spec import InvalidInput

if TYPE_CHECKING:
    from weft.data.input_records import InputRecord
    from weft.runs.run import AnyRun

Form = Literal["json", "text", "table"]  # a JSON object, lines of text, or values to add to the record


class PartForm(NamedTuple):
    """How predictions are printed."""

    form: Form
    numbered: bool  # whether n-best lists have line numbers
    files: bool  # whether to make further files, such as alignments


class Part(NamedTuple):
    """The results for some records of a batch, by index in the batch."""

    problems: dict[int, str]
    outputs: dict[int, Any]  # in the form of `PartForm.form`
    files: dict[int, Mapping[str, bytes]]
    truncated: int  # how many inputs were truncated
    unknown: dict[int, Sequence[str]]  # parts of inputs that become <unk>

    def to_json(self) -> list[Any]:
        """What JSON can hold."""
        files = [
            (index, {name: base64.b64encode(data).decode() for name, data in part.items()})
            for index, part in self.files.items()
        ]
        return [list(self.problems.items()), list(self.outputs.items()), files, self.truncated, list(self.unknown.items())]

    @classmethod
    def from_json(cls, value: list[Any]) -> Part:
        """The reverse of `to_json`."""
        problems, outputs, files, truncated, unknown = value
        decoded: dict[int, Mapping[str, bytes]] = {
            index: {name: base64.b64decode(text) for name, text in part.items()} for index, part in files
        }
        return cls(dict(problems), dict(outputs), decoded, truncated, dict(unknown))


class Predictor:
    """Predicts records of batches with the options of a command."""

    def __init__(self, run: AnyRun, lines: Lines[Any, Any]) -> None:
        self.run, self.lines = run, lines

    def part(self, entries: Sequence[InputRecord], first: int, form: PartForm, indices: Sequence[int] | None = None) -> Part:
        """The results for the records with these indices, or for all. `first` is the line number of the first record."""
        chosen = dict(enumerate(entries)) if indices is None else {index: entries[index] for index in indices}
        kept = list(chosen.values())
        problems = {index: problem for index, problem in zip(chosen, _problems(kept), strict=True) if problem is not None}
        parsed = {index: self.lines.parse(entry.texts) for index, entry in chosen.items() if index not in problems}
        inputs = {index: item for index, item in parsed.items() if item is not None and not isinstance(item, InvalidInput)}
        options = self.lines.options([first + index for index in inputs])
        results = dict(zip(inputs, self.run.try_predict(list(inputs.values()), options) if inputs else [], strict=True))
        problems |= {
            index: with_flags(item.reason) for index, item in (parsed | results).items() if isinstance(item, InvalidInput)
        }
        predictions = {index: item for index, item in results.items() if index not in problems}
        names = {index: f"{first + index:06d}" for index in predictions} if form.files else {}
        return Part(
            problems,
            {
                index: self._output(entry, form, predictions.get(index), (first + index) if form.numbered else None)
                for index, entry in chosen.items()
            },
            {index: self.lines.files(entries[index], predictions[index], name) for index, name in names.items()},
            sum(map(self.lines.truncated, predictions.values())),
            self._unknown({index: inputs[index] for index in predictions}, by_record=indices is not None),
        )

    def _output(self, entry: InputRecord, form: PartForm, prediction: Any, number: int | None) -> Any:
        if form.form == "json":
            return self.lines.json(entry, prediction)
        return self.lines.text(prediction, number) if form.form == "text" else self.lines.values(prediction)

    def _unknown(self, inputs: Mapping[int, Any], *, by_record: bool) -> dict[int, Sequence[str]]:
        """The parts of inputs that become <unk>: of each record if several processes have records, to count them in order."""
        if not inputs:
            return {}
        if not by_record:
            return {0: self.run.spec.unknown_tokens(self.run, list(inputs.values()))}
        unknown = {index: self.run.spec.unknown_tokens(self.run, [item]) for index, item in inputs.items()}
        return {index: tokens for index, tokens in unknown.items() if tokens}


def _problems(entries: Sequence[InputRecord]) -> list[str | None]:
    found = problems_in(entries)
    return [found.get(index) for index in range(len(entries))]
