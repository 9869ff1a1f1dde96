"""Write texts and pairs around well-known example sentences: python examples/make_lectures.py [--output-dir DIR]

students.txt     "students opened their books": a text with known counts, four books in ten
writers.txt      "the writer of the books is planning a sequel": subjects with a noun between them and their verb
pies.tsv         "he hit me with a pie", "il m' a entarté": five English words are one French word
crossing.tsv     "the animal didn't cross the street because it was too tired" (il) or "too wide" (elle), into French
talk.tsv         a customer's sentence with the previous turn, and the answer: some questions are elliptical
code.tsv         instructions in English, and the line of Python that implements them
../suites/writers.tsv   minimal pairs: is and are, after nouns that agree with the subject and nouns that do not

All of it is generated from small grammars.
"""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path

HERE = Path(__file__).parent
_spec = importlib.util.spec_from_file_location("make_data", HERE / "make_data.py")
if _spec is None or _spec.loader is None:
    raise SystemExit("make_lectures.py needs make_data.py beside it")
make_data = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(make_data)
Chance, distinct = make_data.Chance, make_data.distinct
Pair = tuple[str, str]

# ---- students: of ten who opened something, four opened their books and one their exams

OPENED = ["books"] * 4 + ["laptops"] * 3 + ["minds"] * 2 + ["exams"]
BEFORE = ["", "as the proctor started the clock , the ", "in the morning ", "the ", "all "]
OTHERS = [
    "the teacher opened the door",
    "teachers opened their windows",
    "the students closed their books",
    "the proctor opened the exams",
    "students read their books",
    "the writer opened her laptop",
]


def students(chance: Chance) -> str:
    lines = [f"{before}students opened their {thing}" for before in BEFORE for thing in OPENED]
    lines += OTHERS * 5
    keys = [chance.random() for _ in lines]
    return "".join(f"{line}\n" for _, line in sorted(zip(keys, lines, strict=True)))


# ---- writers

PEOPLE = ["writer", "painter", "teacher", "singer", "doctor", "captain", "author", "baker"]
OBJECTS = ["book", "song", "picture", "play", "ship", "house", "letter", "garden"]
LINKS = ["of", "behind", "near", "with"]
VERBS = [("is", "are"), ("was", "were"), ("has", "have"), ("likes", "like"), ("knows", "know")]
ENDS = {
    "is": ["planning a sequel", "here", "at home", "famous"],
    "was": ["planning a journey", "late", "in the city", "famous"],
    "has": ["a new idea", "no time", "many friends"],
    "likes": ["the sea", "old stories", "the town"],
    "knows": ["the way", "the answer", "everybody here"],
}


def _subject(chance: Chance, plural: int, between: int | None) -> str:
    """`the writer`, or with a noun between it and its verb, in the singular (0) or the plural (1)."""
    person = f"the {chance.pick(PEOPLE)}{'s' if plural else ''}"
    if between is None:
        return person
    return f"{person} {chance.pick(LINKS)} the {chance.pick(OBJECTS)}{'s' if between else ''}"


def writers(chance: Chance, number: int) -> str:
    lines = []
    while len(lines) < number:
        plural, verb = chance.below(2), chance.pick(VERBS)
        between = None if chance.below(2) else chance.below(2)
        lines.append(f"{_subject(chance, plural, between)} {verb[plural]} {chance.pick(ENDS[verb[0]])}")
    return "".join(f"{line}\n" for line in lines)


def writers_suite(chance: Chance, number: int) -> str:
    """Good, bad, phenomenon, and how many nouns of the other number stand between subject and verb."""
    rows = ["the writer of the books is planning a sequel\tthe writer of the books are planning a sequel\tbetween\t1"]
    while len(rows) < number:
        plural, verb = chance.below(2), chance.pick(VERBS)
        between = chance.pick([None, 0, 1])
        subject, end = _subject(chance, plural, between), chance.pick(ENDS[verb[0]])
        kind, attractors = ("next to it", 0) if between is None else ("between", int(between != plural))
        row = f"{subject} {verb[plural]} {end}\t{subject} {verb[1 - plural]} {end}\t{kind}\t{attractors}"
        if row not in rows:
            rows.append(row)
    return "good\tbad\tphenomenon\tattractors\n" + "".join(f"{row}\n" for row in rows)


# ---- pies: he hit me with a pie, il m' a entarté

# fmt: off
WHO = [("he", "il", 0), ("she", "elle", 0), ("the man", "l' homme", 0), ("the woman", "la femme", 0),
       ("the dog", "le chien", 0), ("they", "ils", 1), ("the children", "les enfants", 1), ("the men", "les hommes", 1)]
WHOM = [("me", "m'", ""), ("you", "t'", ""), ("him", "l'", ""), ("us", "nous", "s"), ("them", "les", "s")]
DID = [("hit {} with a pie", "entarté"), ("saw {}", "vu"), ("heard {}", "entendu"), ("called {}", "appelé"),
       ("thanked {}", "remercié"), ("found {}", "trouvé"), ("followed {}", "suivi"), ("looked for {}", "cherché"),
       ("waited for {}", "attendu"), ("paid {} a visit", "visité"), ("took a picture of {}", "photographié"),
       ("helped {}", "aidé")]
WHEN = [("", ""), (" today", " aujourd'hui"), (" yesterday", " hier"), (" in the garden", " dans le jardin"),
        (" at school", " à l' école")]
# fmt: on


def pies(chance: Chance) -> Pair:
    (who, qui, several), (whom, me, plural), (did, fait), (when, quand) = map(chance.pick, (WHO, WHOM, DID, WHEN))
    has = "ont" if several else "a"
    denied = chance.below(4) == 0
    english = f"{who} {did.format(whom)}{when}"
    if denied:
        english = f"{who} never {did.format(whom)}{when}"
    french = f"{qui} ne {me} {has} jamais {fait}{plural}{quand}" if denied else f"{qui} {me} {has} {fait}{plural}{quand}"
    return english, french


# ---- crossing: what `it` is depends on the last word

# fmt: off
MOVERS = [("animal", "l' animal", "m"), ("dog", "le chien", "m"), ("horse", "le cheval", "m"), ("mouse", "la souris", "f"),
          ("cow", "la vache", "f"), ("car", "la voiture", "f"), ("boat", "le bateau", "m"), ("train", "le train", "m")]
GROUNDS = [("street", "la rue", "f"), ("river", "la rivière", "f"), ("field", "le champ", "m"), ("bridge", "le pont", "m"),
           ("road", "la route", "f"), ("yard", "la cour", "f"), ("wood", "le bois", "m"), ("canal", "le canal", "m")]
OF_MOVERS = [("tired", "fatigué", "fatiguée"), ("slow", "lent", "lente"), ("heavy", "lourd", "lourde"),
             ("old", "vieux", "vieille")]
OF_GROUNDS = [("wide", "large", "large"), ("long", "long", "longue"), ("dark", "sombre", "sombre"),
              ("wet", "mouillé", "mouillée")]
DEEDS = [("didn't cross", "n' a pas traversé"), ("didn't leave", "n' a pas quitté"), ("crossed", "a traversé"),
         ("left", "a quitté")]
# fmt: on


def crossing(chance: Chance) -> Pair:
    mover, ground, (deed, fait) = chance.pick(MOVERS), chance.pick(GROUNDS), chance.pick(DEEDS)
    meant, words = (mover, OF_MOVERS) if chance.below(2) else (ground, OF_GROUNDS)
    english, masculine, feminine = chance.pick(words)
    pronoun, adjective = ("il", masculine) if meant[2] == "m" else ("elle", feminine)
    source = f"the {mover[0]} {deed} the {ground[0]} because it was too {english}"
    return source, f"{mover[1]} {fait} {ground[1]} parce qu' {pronoun} était trop {adjective}"


# ---- talk

PRICES = {"hats": 15, "boots": 60, "coats": 90, "scarves": 12, "gloves": 8}
MADE_OF = {"hats": "felt", "boots": "leather", "coats": "wool", "scarves": "silk", "gloves": "wool"}
COLOURS = ["red", "black", "brown", "blue"]
SOLD_OUT = ["brown", "blue"]  # whatever it is
HOURS = {"monday": 8, "tuesday": 8, "wednesday": 10, "thursday": 8, "friday": 9, "saturday": 10}
POLITE = ["", "hello , ", "excuse me , ", "please , "]


def _has(colour: str, thing: str) -> str:
    return f"sorry , we have no {colour} {thing} ." if colour in SOLD_OUT else f"yes , we have {colour} {thing} ."


def _about(kind: int, thing: str, colour: str) -> Pair:
    """A question, whole, and its answer."""
    return [
        (f"do you have {colour} {thing} ?", _has(colour, thing)),
        (f"how much are the {thing} ?", f"the {thing} are {PRICES[thing]} euros ."),
        (f"what are the {thing} made of ?", f"the {thing} are made of {MADE_OF[thing]} ."),
    ][kind]


def talk(chance: Chance) -> Pair:
    thing, colour, about = chance.pick(list(PRICES)), chance.pick(COLOURS), chance.below(3)
    question, answer = _about(about, thing, colour)
    kind, hello = chance.below(5), chance.pick(POLITE)
    if kind == 0:
        day = chance.pick(list(HOURS))
        return f"{hello}when do you open on {day} ?", f"we open at {HOURS[day]} on {day} ."
    if kind == 1:
        return hello + question, answer
    before = f"{hello}{question} - {answer} -"
    if kind == 2:  # the thing changes, the question stays
        other = chance.pick([name for name in PRICES if name != thing])
        return f"{before} and {other} ?", _about(about, other, colour)[1]
    if kind == 3:  # the thing is a pronoun
        return f"{before} how much are they ?", _about(1, thing, colour)[1]
    new = chance.pick([name for name in COLOURS if name != colour])
    return f"{hello}do you have {colour} {thing} ? - {_has(colour, thing)} - and {new} ones ?", _has(new, thing)


# ---- code

NAMES = ["x", "y", "total", "count", "price", "size", "left", "right"]
LISTS = ["items", "names", "words", "rows"]


def _value(chance: Chance) -> str:
    return chance.pick(NAMES) if chance.below(2) else str(chance.below(10))


def _test(chance: Chance) -> Pair:
    name, value = chance.pick(NAMES), _value(chance)
    words, sign = chance.pick([("is larger than", ">"), ("is smaller than", "<"), ("equals", "=="), ("is not", "!=")])
    return f"{name} {words} {value}", f"{name} {sign} {value}"


def _action(chance: Chance) -> Pair:
    name, value, many = chance.pick(NAMES), _value(chance), chance.pick(LISTS)
    return chance.pick(
        [
            (f"add {value} to {name}", f"{name} += {value}"),
            (f"take {value} from {name}", f"{name} -= {value}"),
            (f"set {name} to {value}", f"{name} = {value}"),
            (f"print {name}", f"print ( {name} )"),
            (f"append {value} to {many}", f"{many} . append ( {value} )"),
            (f"set {name} to the length of {many}", f"{name} = len ( {many} )"),
            (f"set {name} to the sum of {many}", f"{name} = sum ( {many} )"),
            (f"return {name} times {value}", f"return {name} * {value}"),
        ]
    )


def code(chance: Chance) -> Pair:
    (does, line), kind = _action(chance), chance.below(4)
    if kind == 0:
        return does, line
    if kind == 1:
        says, test = _test(chance)
        return chance.pick([f"if {says} {does}", f"{does} if {says}"]), f"if {test} : {line}"
    if kind == 2:
        many = chance.pick(LISTS)
        return chance.pick([f"for each row of {many} {does}", f"{does} for each row of {many}"]), f"for row in {many} : {line}"
    says, test = _test(chance)
    return chance.pick([f"while {says} {does}", f"{does} as long as {says}"]), f"while {test} : {line}"


# ---- files

PAIRS = {"pies": (pies, 500), "crossing": (crossing, 500), "talk": (talk, 600), "code": (code, 700)}


def texts() -> dict[str, str]:
    """What every file holds, by its path below data/."""
    found = {
        "students.txt": students(Chance(1)),
        "writers.txt": writers(Chance(2), 1200),
        "../suites/writers.tsv": writers_suite(Chance(3), 120),
    }
    for seed, (name, (make, number)) in enumerate(PAIRS.items(), 4):
        chance = Chance(seed)
        pairs = distinct(lambda make=make, chance=chance: make(chance), number)
        found[f"{name}.tsv"] = "source\ttarget\n" + "".join(f"{source}\t{target}\n" for source, target in pairs)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output-dir", type=Path, default=HERE / "data", help="output directory (examples/data)")
    out = parser.parse_args().output_dir
    for name, text in texts().items():
        path = out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())


if __name__ == "__main__":
    main()
