"""`weft predict` of runs that answer questions: a question, a tab, and a passage in, an answer out."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from weft.cli.entries import Inputs, faults_in, tell_faults, written
from weft.cli.output import note, write, write_json
from weft.text.columns import counted

if TYPE_CHECKING:
    from weft.data.records import Entry
    from weft.tasks.qa.objective import Answer

NEEDS = "needs a question and a passage, {}and has {}"


def parse_asked(line: str) -> tuple[tuple[str, ...], str | None]:
    """A question and a passage; an empty line is none, and has no answer."""
    cells = tuple(line.split("\t"))
    if line.strip() and (len(cells) != 2 or not all(cell.strip() for cell in cells)):
        return cells, NEEDS.format("separated by a tab, ", counted(sum(bool(cell.strip()) for cell in cells), "text"))
    return cells, None


def answer_json(question: str | None, passage: str | None, found: Answer | None) -> dict[str, Any]:
    """A question with its answer; of none the text is empty, and of what could not be read all is null."""
    said = (None, None, None, None) if found is None else found[:4]
    return {
        "question": question,
        "passage": passage,
        **dict(zip(("answer", "start", "stop", "probability"), said, strict=True)),
    }


def _cells(entry: Entry) -> tuple[str | None, str | None]:
    texts = entry.texts
    return (texts[0], texts[1]) if len(texts) == 2 else (entry.text or None, None)


def _values(found: Answer | None) -> dict[str, Any]:
    return {"prediction": None, "probability": None} if found is None else dict(prediction=found[0], probability=found[3])


def predict_answers(run: Any, inputs: Inputs, *, json: bool, quiet: bool) -> int:
    """Print the answer of every record, nothing where there is none: how many could not be read."""
    bad, cut = 0, 0
    for entries in inputs.batches():
        faults = faults_in(entries)
        for at, entry in enumerate(entries):
            count = sum(bool(text.strip()) for text in entry.texts)
            if at not in faults and count == 1:
                faults[at] = NEEDS.format("", counted(count, "text"))
        tell_faults(entries, faults)
        filled = [at for at, entry in enumerate(entries) if at not in faults and "".join(entry.texts).strip()]
        found = dict(zip(filled, run.predict([entries[at].texts for at in filled]), strict=True))
        cut += sum(one.cut for one in found.values())
        for at, entry in enumerate(entries):
            if json:
                error = {"error": faults[at]} if at in faults else {}
                write_json({**answer_json(*_cells(entry), found.get(at)), **error}, indent=None)
            elif inputs.form.plain:
                write((found[at].text if at in found else "") + "\n")
            else:
                write(written(inputs, entry, _values(found.get(at)), faults.get(at)))
        bad += len(faults)
        sys.stdout.flush()
    if cut:
        note(
            f"weft: {'1 question was' if cut == 1 else f'{cut:,} questions were'} longer than the model reads, and cut",
            quiet=quiet,
        )
    return bad
