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

import csv
import io
import json
from collections.abc import Callable
from itertools import pairwise

from _shared import StableRandom, distinct, write_files

Words = list[tuple[str, str]]  # a sentence: words and tags


# ---- reviews

THINGS = "film book soup play room garden museum concert breakfast story ending music bed view waiter game song walk"
PRAISE = "wonderful clever warm charming fresh lovely bright funny"
BLAME = "dull cold bland noisy dirty slow rude stale"


def _opinion(rng: StableRandom, *, good: bool) -> str:
    """An adjective with this sentiment, or a negated one with the opposite sentiment."""
    same, opposite = (PRAISE, BLAME) if good else (BLAME, PRAISE)
    form = rng.choice(["{}", "{}", "so {}", "really {}", "not {} at all", "far from {}"])
    return form.format(rng.word(same if form[:2] in ("{}", "so", "re") else opposite))


def review(rng: StableRandom) -> tuple[str, str]:
    good = rng.random() < 0.5
    first, second = rng.word(THINGS), rng.word(THINGS)
    forms = [
        f"The {first} was {_opinion(rng, good=good)}.",
        f"The {first} was {_opinion(rng, good=good)}, and the {second} was {_opinion(rng, good=good)}.",
        f"Though the {first} was {_opinion(rng, good=not good)}, the {second} was {_opinion(rng, good=good)}.",
        f"The {first} was {_opinion(rng, good=not good)}, but all in all we were {'glad' if good else 'sorry'} we came.",
        f"I {'would' if good else 'would not'} come again: the {first} was {_opinion(rng, good=good)}.",
    ]
    return rng.choice(forms), "good" if good else "bad"


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


def question(rng: StableRandom) -> tuple[str, str]:
    label = rng.choice(list(QUESTIONS))
    thing, animal = rng.word(THING), rng.word(ANIMALS)
    parts = {"name": rng.word(NAMES), "thing": thing, "animal": animal}
    parts |= {"a_thing": _with_article(thing), "a_animal": _with_article(animal)}
    return rng.choice(QUESTIONS[label]).format(**parts), label


# ---- tickets

GOODS = "lamp chair kettle radio blanket clock mirror table"
CLAUSES = {
    "late": ["the {} has not come yet", "I still wait for the {}", "my {} is two weeks late"],
    "damage": ["the {} arrived broken", "there is a crack in the {}", "the {} has a scratch"],
    "refund": ["I want my money back for the {}", "please pay back the {}", "I paid twice for the {}"],
    "praise": ["I love the {}", "thank you for the beautiful {}", "the {} is just what I wanted"],
}
OTHER = ["do you sell a {} as well", "which colours does the {} come in", "how heavy is the {}"]


def ticket(rng: StableRandom) -> tuple[str, list[str]]:
    labels = [label for label in CLAUSES if rng.random() < 0.35]
    clauses = [rng.choice(CLAUSES[label]).format(rng.word(GOODS)) for label in labels]
    if not labels or rng.random() < 0.3:
        clauses.append(rng.choice(OTHER).format(rng.word(GOODS)))
    clauses.sort(key=lambda clause: rng.random())
    return " and ".join(clauses), labels


# ---- inference

WHO = {"woman": "man", "man": "woman", "girl": "boy", "boy": "girl"}
HERDS = "cats dogs ducks geese ponies"
COLORS = "black white brown grey"
PLACES = "kitchen garden yard stable park"
DOES = {"feeds": "is feeding", "washes": "is washing", "calls": "is calling", "draws": "is drawing"}


def _another(rng: StableRandom, words: str, word: str) -> str:
    return rng.choice([other for other in words.split() if other != word])


def inference(rng: StableRandom) -> tuple[str, str]:
    """Premise and hypothesis, separated by a tab, and the label."""
    who, animals, color, place = rng.choice(list(WHO)), rng.word(HERDS), rng.word(COLORS), rng.word(PLACES)
    does = rng.choice(list(DOES))
    premise = f"The {who} {does} the {color} {animals} in the {place} ."
    label = rng.choice(["yes", "no", "maybe"])
    hypotheses = {
        "yes": [f"The {who} {DOES[does]} {animals} .", f"The {who} is in the {place} .", f"The {animals} are {color} ."],
        "no": [
            f"The {WHO[who]} {DOES[does]} the {animals} .",
            f"The {animals} are {_another(rng, COLORS, color)} .",
            f"The {who} is in the {_another(rng, PLACES, place)} .",
            f"Nobody {does} the {animals} .",
        ],
        "maybe": [
            f"The {who} is tired .",
            f"The {animals} belong to the {who} .",
            f"The {who} {does} the {animals} every day .",
        ],
    }
    return f"{premise}\t{rng.choice(hypotheses[label])}", label


# ---- parts of speech

NOUNS = "boat fish can light saw walk watch paint cook plant run water stone letter drink play"
VERBS = "fish can light saw walk watch paint cook plant run water drink play like sell carry"
ADJECTIVES = "light old long open clean green still back small"
STEMS = "bren tavil morg selt quand ripp falor dunst harv glim porin wex"


def _new_word(rng: StableRandom, endings: str) -> str:
    """An invented word, which mostly occurs once: only its ending shows its part of speech."""
    return rng.word(STEMS) + rng.word("a e i o u ar el in") + rng.word(endings)


def _noun_phrase(rng: StableRandom) -> Words:
    word = rng.word(NOUNS) if rng.random() < 0.7 else _new_word(rng, "ness tion ment")
    adjective = [(rng.word(ADJECTIVES) if rng.random() < 0.7 else _new_word(rng, "ish ful ous"), "ADJ")]
    return [(rng.word("the a this that every"), "DET"), *(adjective if rng.random() < 0.4 else []), (word, "NOUN")]


def _subject(rng: StableRandom) -> Words:
    return rng.choice([[(rng.word("they we you I"), "PRON")], [(rng.word(NAMES), "PROPN")], _noun_phrase(rng)])


def _verb_phrase(rng: StableRandom) -> Words:
    word = rng.word(VERBS) if rng.random() < 0.7 else _new_word(rng, "ise ate ify")
    words = [(rng.word("can will must"), "AUX"), (word, "VERB"), *_noun_phrase(rng)]
    if rng.random() < 0.3:
        words.append((_new_word(rng, "ly"), "ADV"))
    return words


def _prepositional_phrase(rng: StableRandom) -> Words:
    return [(rng.word("to near with from"), "ADP"), *_noun_phrase(rng)]


def speech(rng: StableRandom) -> Words:
    clause = [*_subject(rng), *_verb_phrase(rng)]
    continuations: list[Words] = [
        [],
        _prepositional_phrase(rng),
        [("to", "PART"), (rng.word(VERBS), "VERB"), *_noun_phrase(rng)],
        [(rng.word("and but or"), "CCONJ"), *_subject(rng), *_verb_phrase(rng)],
    ]
    if rng.random() < 0.2:
        clause = [(rng.word("they we you"), "PRON"), (rng.word("say know hope"), "VERB"), ("that", "SCONJ"), *clause]
    return [*clause, *rng.choice(continuations), (rng.word(". . !"), "PUNCT")]


# ---- entities


def _capitalized_name(rng: StableRandom, min_syllables: int, endings: str) -> str:
    parts = [rng.word("b d f g k l m n p r s t v") + rng.word("a e i o u") for _ in range(min_syllables + rng.below(2))]
    return "".join(parts).capitalize() + rng.word(endings)


def _tag_span(span_type: str, words: list[str]) -> Words:
    return [(word, f"{'I' if i else 'B'}-{span_type}") for i, word in enumerate(words)]


def _person(rng: StableRandom) -> Words:
    family = _capitalized_name(rng, 1, "ner sen vic rado")
    return _tag_span("PER", [rng.word(NAMES), family] if rng.random() < 0.7 else [family])


def _town(rng: StableRandom) -> Words:
    town = _capitalized_name(rng, 1, "burg ton ville haven")
    return _tag_span("LOC", [rng.word("New Upper Old"), town] if rng.random() < 0.3 else [town])


def _company(rng: StableRandom) -> Words:
    # a company may have the name of a person or a town: only the next word distinguishes them
    first = _capitalized_name(rng, 1, "ner sen burg ton")
    return _tag_span("ORG", [first, rng.word("Bank Railways Press Motors"), *(["Ltd"] if rng.random() < 0.3 else [])])


def _outside(words: str) -> Words:
    return [(word, "O") for word in words.split()]


def entities(rng: StableRandom) -> Words:
    who, town, company = _person(rng), _town(rng), _company(rng)
    forms: list[list[Words]] = [
        [who, _outside("works for"), company, _outside("in"), town],
        [who, _outside("flew to"), town, _outside("on Monday")],
        [company, _outside("will open a shop in"), town],
        [_outside("In"), town, who, _outside("met"), _person(rng)],
        [_outside("The train to"), town, _outside("was late , said"), who],
        [company, _outside("sold its house in"), town, _outside("to"), _company(rng)],
        [_outside("Nobody knew why the lamp was broken")],
    ]
    return [*(word for part in rng.choice(forms) for word in part), (".", "O")]


# ---- syllables

CLOSED = "n r l"


def _syllable(rng: StableRandom, *, first: bool, last: bool) -> str:
    onset = rng.word("b c d f g l m n p r s t v ch gn tr pr st str br cr sp qu")
    vowel = rng.word("a e i o") if onset != "gn" else rng.word("a e o")
    onset = "" if first and onset == "gn" else onset
    return onset + vowel + (rng.word(CLOSED) if not last and rng.random() < 0.25 else "")


def _close(syllable: str, following: str, rng: StableRandom) -> str:
    """Sometimes close a syllable with the first consonant of the next one: `gat` before `to`."""
    has_one_consonant = len(following) > 1 and following[0] in "bcdfglmnprstv" and following[1] in "aeio"
    is_open = syllable[-1] in "aeio"
    return syllable + following[0] if has_one_consonant and is_open and rng.random() < 0.3 else syllable


def syllables(rng: StableRandom) -> Words:
    number = 2 + rng.below(3)
    parts = [_syllable(rng, first=i == 0, last=i == number - 1) for i in range(number)]
    closed = [*(_close(syllable, following, rng) for syllable, following in pairwise(parts)), parts[-1]]
    return [(letter, "I" if i else "B") for part in closed for i, letter in enumerate(part)]


# ---- files


def _csv(rows: list[tuple[str, str]]) -> str:
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows([("label", "text"), *((label, text) for text, label in rows)])
    return file.getvalue()


def _conllu(sentences: list[Words]) -> str:
    blocks = []
    for sentence in sentences:
        rows = [f"{i}\t{word}\t_\t{tag}" + 6 * "\t_" for i, (word, tag) in enumerate(sentence, 1)]
        blocks.append("\n".join([f"# text = {' '.join(word for word, _ in sentence)}", *rows]) + "\n\n")
    return "".join(blocks)


def _columns(sentences: list[Words]) -> str:
    return "".join("".join(f"{word} {tag}\n" for word, tag in sentence) + "\n" for sentence in sentences)


def _distinct_sentences(generate: Callable[[StableRandom], Words], number: int, rng: StableRandom) -> list[Words]:
    def with_text(rng: StableRandom) -> tuple[str, Words]:
        words = generate(rng)
        return " ".join(word for word, _ in words), words

    return [words for _, words in distinct(with_text, number, rng)]


def texts(*, times: int = 1) -> dict[str, str]:
    """The contents of all files, by name."""
    questions = distinct(question, 700 * times, StableRandom(12))
    tickets = distinct(ticket, 500 * times, StableRandom(13))
    pairs = distinct(inference, 700 * times, StableRandom(14))
    return {
        "reviews.csv": _csv(distinct(review, 900 * times, StableRandom(11))),
        "questions.txt": "".join(f"{label} {text}\n" for text, label in questions),
        "tickets.jsonl": "".join(json.dumps({"text": text, "label": labels}) + "\n" for text, labels in tickets),
        "inference.tsv": "premise\thypothesis\tlabel\n" + "".join(f"{texts}\t{label}\n" for texts, label in pairs),
        "speech.conllu": _conllu(_distinct_sentences(speech, 240 * times, StableRandom(15))),
        "entities.txt": _columns(_distinct_sentences(entities, 400 * times, StableRandom(16))),
        "syllables.txt": _columns(_distinct_sentences(syllables, 600 * times, StableRandom(17))),
    }


if __name__ == "__main__":
    write_files(__doc__, lambda times: texts(times=times), "examples")
