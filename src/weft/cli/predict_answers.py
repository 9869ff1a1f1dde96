"""`weft predict` of runs that answer questions: a question, a tab, and a passage in, an answer out."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from weft.cli.output import note, write, write_json
from weft.cli.together import no_text, tell, without

if TYPE_CHECKING:
    from weft.cli.lines import Line
    from weft.tasks.span import Answer


def _unfit(lines: Sequence[str]) -> dict[int, str]:
    """Lines that are no question and passage; an empty line is none, and has no answer."""
    found = {}
    for number, line in enumerate(lines):
        cells = line.split("\t")
        if line.strip() and (len(cells) != 2 or not all(cell.strip() for cell in cells)):
            count = sum(bool(cell.strip()) for cell in cells)
            found[number] = f"needs a question and a passage, separated by a tab, and has {count} texts"
    return found


def answer_json(question: str | None, passage: str | None, found: Answer | None) -> dict[str, Any]:
    """A question with its answer; of none the text is empty, and of what could not be read all is null."""
    said = (None, None, None, None) if found is None else found
    return {
        "question": question,
        "passage": passage,
        **dict(zip(("answer", "start", "stop", "probability"), said, strict=True)),
    }


def _cells(line: str) -> tuple[str | None, str | None]:
    cells = line.split("\t")
    return (cells[0], cells[1]) if len(cells) == 2 else (line or None, None)


def predict_answers(run: Any, batches: Iterator[Sequence[Line]], *, json: bool, quiet: bool) -> int:
    """Print the answer of every line, an empty line where there is none: how many lines could not be read."""
    done, bad, cut = 0, 0, 0
    for batch in batches:
        broken = no_text(batch)
        read = without(batch, broken)
        faults = tell(broken, _unfit(read), done)
        filled = [at for at, line in enumerate(read) if line.strip() and at not in faults]
        found = dict(zip(filled, run.predict([tuple(read[at].split("\t")) for at in filled]), strict=True))
        cut += run.cut
        for at, line in enumerate(read):
            if json:
                error = {"error": faults[at]} if at in faults else {}
                write_json({**answer_json(*_cells(line), found.get(at)), **error}, indent=None)
            else:
                write((found[at].text if at in found else "") + "\n")
        done, bad = done + len(batch), bad + len(faults)
        sys.stdout.flush()
    if cut:
        note(
            f"weft: {'1 question was' if cut == 1 else f'{cut:,} questions were'} longer than the model reads, and cut",
            quiet=quiet,
        )
    return bad
