"""Write the labeled texts and tagged sentences of the examples, all generated:
python examples/make_labeled.py [--output-dir DIR] [--times N]

reviews.csv     short reviews, good or bad; praise can be negated
questions.txt   questions, each after its type: PLACE:city Where was Ada born ?
tickets.jsonl   messages to a shop and their topics, or none
inference.tsv   two sentences, and whether the second follows from the first: yes, no, or maybe
speech.conllu   sentences with parts of speech; many words have two
entities.txt    sentences with people, places and companies
syllables.txt   invented words in Italian spelling, one letter per line, and where their syllables begin

The data is regular, so scores on it say nothing about real text. --times 10 makes ten times as many examples. The files in the
repository were made without it.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
Words = list[tuple[str, str]]  # a sentence: every word, and its tag


class Chance:
    """Only `random()` is used: of all that the module offers, it alone is promised to stay the same."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed).random

    def below(self, number: int) -> int:
        return int(self.random() * number)

    def pick(self, options: Sequence[T]) -> T:
        return options[self.below(len(options))]

    def one(self, words: str) -> str:
        return self.pick(words.split())


def distinct(make: Callable[[Chance], tuple[str, T]], number: int, chance: Chance) -> list[tuple[str, T]]:
    """This many different texts, so that no test text is in the training data."""
    found: dict[str, T] = {}
    while len(found) < number:
        text, label = make(chance)
        found.setdefault(text, label)
    return list(found.items())


# ---- reviews

THINGS = "film book soup play room garden museum concert breakfast story ending music bed view waiter game song walk"
PRAISE = "wonderful clever warm charming fresh lovely bright funny"
BLAME = "dull cold bland noisy dirty slow rude stale"


def _judged(chance: Chance, *, good: bool) -> str:
    """An adjective that says so, or one that says the opposite and is denied."""
    meant, other = (PRAISE, BLAME) if good else (BLAME, PRAISE)
    form = chance.pick(["{}", "{}", "so {}", "really {}", "not {} at all", "far from {}"])
    return form.format(chance.one(meant if form[:2] in ("{}", "so", "re") else other))


def review(chance: Chance) -> tuple[str, str]:
    good = chance.random() < 0.5
    first, second = chance.one(THINGS), chance.one(THINGS)
    forms = [
        f"The {first} was {_judged(chance, good=good)}.",
        f"The {first} was {_judged(chance, good=good)}, and the {second} was {_judged(chance, good=good)}.",
        f"Though the {first} was {_judged(chance, good=not good)}, the {second} was {_judged(chance, good=good)}.",
        f"The {first} was {_judged(chance, good=not good)}, but all in all we were {'glad' if good else 'sorry'} we came.",
        f"I {'would' if good else 'would not'} come again: the {first} was {_judged(chance, good=good)}.",
    ]
    return chance.pick(forms), "good" if good else "bad"


# ---- questions

NAMES = "Ada Otto Nora Emil Clara Hugo Ines Karl Lina Milo Rosa Theo"
THING = "bridge kettle lantern piano ladder clock ferry telescope mirror compass violin bicycle kite"
ANIMALS = "otter heron badger mole stork trout beetle hare"
QUESTIONS = {
    "PLACE:city": [
        "Where was {name} born ?",
        "What city has the oldest {thing} ?",
        "In which city did {name} sell it ?",
    ],
    "PLACE:land": ["What country does the {animal} come from ?", "Which land has no {animal} at all ?"],
    "TIME:year": ["What year was the {thing} invented ?", "When did {name} build the {thing} ?"],
    "TIME:day": ["What day is the feast of the {animal} ?", "Which day does {name} clean the {thing} ?"],
    "NUMBER:count": ["How many legs has {a_animal} ?", "How many people can lift {a_thing} ?"],
    "NUMBER:price": ["How much did {name} pay for the {thing} ?", "What does {a_thing} cost ?"],
    "NUMBER:size": ["How tall is {a_animal} ?", "How far can {a_animal} run ?", "How long is the {thing} ?"],
    "PERSON:name": ["Who made the first {thing} ?", "What is the name of the man who tamed the {animal} ?"],
    "PERSON:work": ["What was {name} 's job ?", "What did {name} do for a living ?"],
    "REASON:why": ["Why does {a_animal} hide ?", "What made {name} leave the {thing} ?", "Why was the {thing} so dear ?"],
    "MANNER:how": ["How did {name} repair the {thing} ?", "How do you catch {a_animal} ?"],
}


def _with_article(word: str) -> str:
    return f"{'an' if word[0] in 'aeiou' else 'a'} {word}"


def question(chance: Chance) -> tuple[str, str]:
    label = chance.pick(list(QUESTIONS))
    thing, animal = chance.one(THING), chance.one(ANIMALS)
    parts = {"name": chance.one(NAMES), "thing": thing, "animal": animal}
    parts |= {"a_thing": _with_article(thing), "a_animal": _with_article(animal)}
    return chance.pick(QUESTIONS[label]).format(**parts), label


# ---- tickets

GOODS = "lamp chair kettle radio blanket clock mirror table"
CLAUSES = {
    "late": ["the {} has not come yet", "I still wait for the {}", "my {} is two weeks late"],
    "damage": ["the {} arrived broken", "there is a crack in the {}", "the {} has a scratch"],
    "refund": ["I want my money back for the {}", "please pay back the {}", "I paid twice for the {}"],
    "praise": ["I love the {}", "thank you for the beautiful {}", "the {} is just what I wanted"],
}
OTHER = ["do you sell a {} as well", "which colours does the {} come in", "how heavy is the {}"]


def ticket(chance: Chance) -> tuple[str, list[str]]:
    labels = [label for label in CLAUSES if chance.random() < 0.35]
    clauses = [chance.pick(CLAUSES[label]).format(chance.one(GOODS)) for label in labels]
    if not labels or chance.random() < 0.3:
        clauses.append(chance.pick(OTHER).format(chance.one(GOODS)))
    clauses.sort(key=lambda clause: chance.random())
    return " and ".join(clauses), labels


# ---- inference

WHO = {"woman": "man", "man": "woman", "girl": "boy", "boy": "girl"}
BEASTS = "cats dogs ducks geese ponies"
COLOURS = "black white brown grey"
PLACES = "kitchen garden yard stable park"
DOES = {"feeds": "is feeding", "washes": "is washing", "calls": "is calling", "draws": "is drawing"}


def _another(chance: Chance, words: str, word: str) -> str:
    return chance.pick([other for other in words.split() if other != word])


def inference(chance: Chance) -> tuple[str, str]:
    """Both sentences, with a tab between."""
    who, beasts, colour, place = chance.pick(list(WHO)), chance.one(BEASTS), chance.one(COLOURS), chance.one(PLACES)
    does = chance.pick(list(DOES))
    premise = f"The {who} {does} the {colour} {beasts} in the {place} ."
    label = chance.pick(["yes", "no", "maybe"])
    hypotheses = {
        "yes": [f"The {who} {DOES[does]} {beasts} .", f"The {who} is in the {place} .", f"The {beasts} are {colour} ."],
        "no": [
            f"The {WHO[who]} {DOES[does]} the {beasts} .",
            f"The {beasts} are {_another(chance, COLOURS, colour)} .",
            f"The {who} is in the {_another(chance, PLACES, place)} .",
            f"Nobody {does} the {beasts} .",
        ],
        "maybe": [f"The {who} is tired .", f"The {beasts} belong to the {who} .", f"The {who} {does} the {beasts} every day ."],
    }
    return f"{premise}\t{chance.pick(hypotheses[label])}", label


# ---- parts of speech

NOUNS = "boat fish can light saw walk watch paint cook plant run water stone letter drink play"
VERBS = "fish can light saw walk watch paint cook plant run water drink play like sell carry"
ADJECTIVES = "light old long open clean green still back small"
STEMS = "bren tavil morg selt quand ripp falor dunst harv glim porin wex"


def _new_word(chance: Chance, endings: str) -> str:
    """A word that is mostly seen once: only its end says what it is."""
    return chance.one(STEMS) + chance.one("a e i o u ar el in") + chance.one(endings)


def _noun(chance: Chance) -> Words:
    word = chance.one(NOUNS) if chance.random() < 0.7 else _new_word(chance, "ness tion ment")
    before = [(chance.one(ADJECTIVES) if chance.random() < 0.7 else _new_word(chance, "ish ful ous"), "ADJ")]
    return [(chance.one("the a this that every"), "DET"), *(before if chance.random() < 0.4 else []), (word, "NOUN")]


def _who(chance: Chance) -> Words:
    return chance.pick([[(chance.one("they we you I"), "PRON")], [(chance.one(NAMES), "PROPN")], _noun(chance)])


def _does(chance: Chance) -> Words:
    word = chance.one(VERBS) if chance.random() < 0.7 else _new_word(chance, "ise ate ify")
    found = [(chance.one("can will must"), "AUX"), (word, "VERB"), *_noun(chance)]
    if chance.random() < 0.3:
        found.append((_new_word(chance, "ly"), "ADV"))
    return found


def _place(chance: Chance) -> Words:
    return [(chance.one("to near with from"), "ADP"), *_noun(chance)]


def speech(chance: Chance) -> Words:
    clause = [*_who(chance), *_does(chance)]
    longer: list[Words] = [
        [],
        _place(chance),
        [("to", "PART"), (chance.one(VERBS), "VERB"), *_noun(chance)],
        [(chance.one("and but or"), "CCONJ"), *_who(chance), *_does(chance)],
    ]
    if chance.random() < 0.2:
        clause = [(chance.one("they we you"), "PRON"), (chance.one("say know hope"), "VERB"), ("that", "SCONJ"), *clause]
    return [*clause, *chance.pick(longer), (chance.one(". . !"), "PUNCT")]


# ---- entities


def _syllables(chance: Chance, least: int, endings: str) -> str:
    parts = [chance.one("b d f g k l m n p r s t v") + chance.one("a e i o u") for _ in range(least + chance.below(2))]
    return "".join(parts).capitalize() + chance.one(endings)


def _marked(kind: str, words: list[str]) -> Words:
    return [(word, f"{'I' if at else 'B'}-{kind}") for at, word in enumerate(words)]


def _person(chance: Chance) -> Words:
    family = _syllables(chance, 1, "ner sen vic rado")
    return _marked("PER", [chance.one(NAMES), family] if chance.random() < 0.7 else [family])


def _town(chance: Chance) -> Words:
    town = _syllables(chance, 1, "burg ton ville haven")
    return _marked("LOC", [chance.one("New Upper Old"), town] if chance.random() < 0.3 else [town])


def _company(chance: Chance) -> Words:
    # a company may have the name of a person or a town: only what follows tells
    first = _syllables(chance, 1, "ner sen burg ton")
    return _marked("ORG", [first, chance.one("Bank Railways Press Motors"), *(["Ltd"] if chance.random() < 0.3 else [])])


def _plain(words: str) -> Words:
    return [(word, "O") for word in words.split()]


def entities(chance: Chance) -> Words:
    who, town, company = _person(chance), _town(chance), _company(chance)
    forms: list[list[Words]] = [
        [who, _plain("works for"), company, _plain("in"), town],
        [who, _plain("flew to"), town, _plain("on Monday")],
        [company, _plain("will open a shop in"), town],
        [_plain("In"), town, who, _plain("met"), _person(chance)],
        [_plain("The train to"), town, _plain("was late , said"), who],
        [company, _plain("sold its house in"), town, _plain("to"), _company(chance)],
        [_plain("Nobody knew why the lamp was broken")],
    ]
    return [*(word for part in chance.pick(forms) for word in part), (".", "O")]


# ---- syllables

CLOSED = "n r l"


def _syllable(chance: Chance, *, first: bool, last: bool) -> str:
    onset = chance.one("b c d f g l m n p r s t v ch gn tr pr st str br cr sp qu")
    vowel = chance.one("a e i o") if onset != "gn" else chance.one("a e o")
    onset = "" if first and onset == "gn" else onset
    return onset + vowel + (chance.one(CLOSED) if not last and chance.random() < 0.25 else "")


def _doubled(before: str, after: str, chance: Chance) -> str:
    """The syllable, closed with the consonant that the next begins with, now and then: `gat` before `to`."""
    single = len(after) > 1 and after[0] in "bcdfglmnprstv" and after[1] in "aeio"
    return before + after[0] if single and before[-1] in "aeio" and chance.random() < 0.3 else before


def syllables(chance: Chance) -> Words:
    number = 2 + chance.below(3)
    parts = [_syllable(chance, first=at == 0, last=at == number - 1) for at in range(number)]
    closed = [*(_doubled(before, after, chance) for before, after in pairwise(parts)), parts[-1]]
    return [(letter, "I" if at else "B") for part in closed for at, letter in enumerate(part)]


# ---- files


def _csv(rows: list[tuple[str, str]]) -> str:
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows([("label", "text"), *((label, text) for text, label in rows)])
    return file.getvalue()


def _conllu(sentences: list[Words]) -> str:
    blocks = []
    for sentence in sentences:
        rows = [f"{at}\t{word}\t_\t{tag}" + 6 * "\t_" for at, (word, tag) in enumerate(sentence, 1)]
        blocks.append("\n".join([f"# text = {' '.join(word for word, _ in sentence)}", *rows]) + "\n\n")
    return "".join(blocks)


def _columns(sentences: list[Words]) -> str:
    return "".join("".join(f"{word} {tag}\n" for word, tag in sentence) + "\n" for sentence in sentences)


def _sentences(make: Callable[[Chance], Words], number: int, chance: Chance) -> list[Words]:
    def keyed(chance: Chance) -> tuple[str, Words]:
        words = make(chance)
        return " ".join(word for word, _ in words), words

    return [words for _, words in distinct(keyed, number, chance)]


def texts(*, times: int = 1) -> dict[str, str]:
    """What every file holds, by its name."""
    questions = distinct(question, 700 * times, Chance(12))
    tickets = distinct(ticket, 500 * times, Chance(13))
    pairs = distinct(inference, 700 * times, Chance(14))
    return {
        "reviews.csv": _csv(distinct(review, 900 * times, Chance(11))),
        "questions.txt": "".join(f"{label} {text}\n" for text, label in questions),
        "tickets.jsonl": "".join(json.dumps({"text": text, "label": labels}) + "\n" for text, labels in tickets),
        "inference.tsv": "premise\thypothesis\tlabel\n" + "".join(f"{both}\t{label}\n" for both, label in pairs),
        "speech.conllu": _conllu(_sentences(speech, 240 * times, Chance(15))),
        "entities.txt": _columns(_sentences(entities, 400 * times, Chance(16))),
        "syllables.txt": _columns(_sentences(syllables, 600 * times, Chance(17))),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--output-dir", type=Path, default=Path(__file__).parent / "data", help="output directory (examples/data)"
    )
    parser.add_argument("--times", type=int, default=1, help="multiply the number of examples (1)")
    chosen = parser.parse_args()
    chosen.output_dir.mkdir(parents=True, exist_ok=True)
    for name, text in texts(times=chosen.times).items():
        (chosen.output_dir / name).write_bytes(text.encode())


if __name__ == "__main__":
    main()
