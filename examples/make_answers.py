"""Write the questions and passages of the examples, all generated:
python examples/make_answers.py [--output-dir DIR] [--times N]

purchases.tsv   who bought what, where and when: a question, a passage, and the span that answers it with its offset; empty if
                the passage has no answer

The data is regular, so scores on it say nothing about real text. --times 10 makes ten times as many questions. The file in the
repository was made without it.
"""

from __future__ import annotations

from _shared import StableRandom, write_files

FIRST = "Ada Otto Nora Emil Clara Hugo Ines Karl Lina Milo Rosa Theo"
FAMILY = "Moner Tasen Bivic Rado Kelner Losen"
THINGS = "lamp kettle piano ladder clock mirror kite violin chair table"
COLORS = "red blue green black white brown"
TOWNS = "Oslo Lima Cairo Delhi Rome Paris Quito"
DAYS = "Monday Tuesday Thursday Friday Sunday"


def maybe(rng: StableRandom, text: str, prob: float = 0.75) -> str:
    """The text with a probability, otherwise an empty string."""
    return text if rng.random() < prob else ""


def question(rng: StableRandom) -> tuple[str, str, str]:
    """A question, a passage, and its answer, which may be empty."""
    who = rng.word(FIRST) + maybe(rng, " " + rng.word(FAMILY), 0.4)
    thing, color = rng.word(THINGS), maybe(rng, rng.word(COLORS))
    town, day = maybe(rng, rng.word(TOWNS)), maybe(rng, rng.word(DAYS))
    where, when = f" in {town}" if town else "", f" on {day}" if day else ""
    end = rng.choice([where + when, when + where])
    what = f"{color} {thing}".strip()
    passage = rng.choice([f"{who} bought a {what}{end}.", f"A {what} was sold to {who}{end}."])
    forms = {
        "Who bought the {}?": who,
        "Where was the {} bought?": town,
        "When was the {} bought?": day,
        "What colour is the {}?": color,
    }
    form = rng.choice(list(forms))
    return form.format(thing), passage, forms[form]


def text(*, times: int = 1) -> str:
    """The content of the file, without duplicates."""
    rng, answers = StableRandom(21), dict[tuple[str, str], str]()
    while len(answers) < 450 * times:
        question_text, passage, answer = question(rng)
        answers.setdefault((question_text, passage), answer)
    rows = [
        f"{question_text}\t{passage}\t{answer}\t{passage.index(answer) if answer else ''}\n"
        for (question_text, passage), answer in answers.items()
    ]
    return "question\tpassage\tanswer\tanswer_start\n" + "".join(rows)


if __name__ == "__main__":
    write_files(__doc__, lambda times: {"purchases.tsv": text(times=times)}, "questions")
