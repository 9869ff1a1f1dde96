"""Write texts and pairs around well-known example sentences:
python examples/make_lectures.py [--output-dir DIR] [--times N]

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

from _shared import StableRandom, distinct, pairs_tsv, write_files

Pair = tuple[str, str]

# ---- students: four of ten open their books, one opens their exams

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


def students(rng: StableRandom) -> str:
    lines = [f"{before}students opened their {thing}" for before in BEFORE for thing in OPENED]
    lines += OTHERS * 5
    keys = [rng.random() for _ in lines]
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


def _subject(rng: StableRandom, plural: int, between: int | None) -> str:
    """`the writer`, optionally with a noun before the verb: singular (0) or plural (1)."""
    person = f"the {rng.choice(PEOPLE)}{'s' if plural else ''}"
    if between is None:
        return person
    return f"{person} {rng.choice(LINKS)} the {rng.choice(OBJECTS)}{'s' if between else ''}"


def writers(rng: StableRandom, number: int) -> str:
    lines: list[str] = []
    while len(lines) < number:
        plural, verb = rng.below(2), rng.choice(VERBS)
        between = None if rng.below(2) else rng.below(2)
        lines.append(f"{_subject(rng, plural, between)} {verb[plural]} {rng.choice(ENDS[verb[0]])}")
    return "".join(f"{line}\n" for line in lines)


def writers_suite(rng: StableRandom, number: int) -> str:
    """Good and bad sentence, phenomenon, and the number of attractors between subject and verb."""
    rows = ["the writer of the books is planning a sequel\tthe writer of the books are planning a sequel\tbetween\t1"]
    while len(rows) < number:
        plural, verb = rng.below(2), rng.choice(VERBS)
        between = rng.choice([None, 0, 1])
        subject, end = _subject(rng, plural, between), rng.choice(ENDS[verb[0]])
        phenomenon, attractors = ("next to it", 0) if between is None else ("between", int(between != plural))
        row = f"{subject} {verb[plural]} {end}\t{subject} {verb[1 - plural]} {end}\t{phenomenon}\t{attractors}"
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


def pies(rng: StableRandom) -> Pair:
    (who, qui, plural_subject), (whom, me, plural) = rng.choice(WHO), rng.choice(WHOM)
    (did, fait), (when, quand) = rng.choice(DID), rng.choice(WHEN)
    has = "ont" if plural_subject else "a"
    is_negated = rng.below(4) == 0
    english = f"{who} {did.format(whom)}{when}"
    if is_negated:
        english = f"{who} never {did.format(whom)}{when}"
    french = f"{qui} ne {me} {has} jamais {fait}{plural}{quand}" if is_negated else f"{qui} {me} {has} {fait}{plural}{quand}"
    return english, french


# ---- crossing: the last word decides what `it` refers to

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


def crossing(rng: StableRandom) -> Pair:
    mover, ground, (deed, fait) = rng.choice(MOVERS), rng.choice(GROUNDS), rng.choice(DEEDS)
    referent, words = (mover, OF_MOVERS) if rng.below(2) else (ground, OF_GROUNDS)
    english, masculine, feminine = rng.choice(words)
    pronoun, adjective = ("il", masculine) if referent[2] == "m" else ("elle", feminine)
    source = f"the {mover[0]} {deed} the {ground[0]} because it was too {english}"
    return source, f"{mover[1]} {fait} {ground[1]} parce qu' {pronoun} était trop {adjective}"


# ---- talk

PRICES = {"hats": 15, "boots": 60, "coats": 90, "scarves": 12, "gloves": 8}
MADE_OF = {"hats": "felt", "boots": "leather", "coats": "wool", "scarves": "silk", "gloves": "wool"}
COLORS = ["red", "black", "brown", "blue"]
SOLD_OUT = ["brown", "blue"]  # of all things
HOURS = {"monday": 8, "tuesday": 8, "wednesday": 10, "thursday": 8, "friday": 9, "saturday": 10}
POLITE = ["", "hello , ", "excuse me , ", "please , "]


def _stock_answer(color: str, thing: str) -> str:
    return f"sorry , we have no {color} {thing} ." if color in SOLD_OUT else f"yes , we have {color} {thing} ."


def _question(topic: int, thing: str, color: str) -> Pair:
    """A complete question and its answer."""
    return [
        (f"do you have {color} {thing} ?", _stock_answer(color, thing)),
        (f"how much are the {thing} ?", f"the {thing} are {PRICES[thing]} euros ."),
        (f"what are the {thing} made of ?", f"the {thing} are made of {MADE_OF[thing]} ."),
    ][topic]


def talk(rng: StableRandom) -> Pair:
    thing, color, topic = rng.choice(list(PRICES)), rng.choice(COLORS), rng.below(3)
    question, answer = _question(topic, thing, color)
    form, hello = rng.below(5), rng.choice(POLITE)
    if form == 0:
        day = rng.choice(list(HOURS))
        return f"{hello}when do you open on {day} ?", f"we open at {HOURS[day]} on {day} ."
    if form == 1:
        return hello + question, answer
    context = f"{hello}{question} - {answer} -"
    if form == 2:  # the same question about another thing
        other = rng.choice([name for name in PRICES if name != thing])
        return f"{context} and {other} ?", _question(topic, other, color)[1]
    if form == 3:  # a pronoun
        return f"{context} how much are they ?", _question(1, thing, color)[1]
    new = rng.choice([name for name in COLORS if name != color])
    return f"{hello}do you have {color} {thing} ? - {_stock_answer(color, thing)} - and {new} ones ?", _stock_answer(new, thing)


# ---- code

NAMES = ["x", "y", "total", "count", "price", "size", "left", "right"]
LISTS = ["items", "names", "words", "rows"]


def _value(rng: StableRandom) -> str:
    return rng.choice(NAMES) if rng.below(2) else str(rng.below(10))


def _test(rng: StableRandom) -> Pair:
    name, value = rng.choice(NAMES), _value(rng)
    words, sign = rng.choice([("is larger than", ">"), ("is smaller than", "<"), ("equals", "=="), ("is not", "!=")])
    return f"{name} {words} {value}", f"{name} {sign} {value}"


def _action(rng: StableRandom) -> Pair:
    name, value, items = rng.choice(NAMES), _value(rng), rng.choice(LISTS)
    return rng.choice(
        [
            (f"add {value} to {name}", f"{name} += {value}"),
            (f"take {value} from {name}", f"{name} -= {value}"),
            (f"set {name} to {value}", f"{name} = {value}"),
            (f"print {name}", f"print ( {name} )"),
            (f"append {value} to {items}", f"{items} . append ( {value} )"),
            (f"set {name} to the length of {items}", f"{name} = len ( {items} )"),
            (f"set {name} to the sum of {items}", f"{name} = sum ( {items} )"),
            (f"return {name} times {value}", f"return {name} * {value}"),
        ]
    )


def code(rng: StableRandom) -> Pair:
    (instruction, line), form = _action(rng), rng.below(4)
    if form == 0:
        return instruction, line
    if form == 1:
        condition, test = _test(rng)
        return rng.choice([f"if {condition} {instruction}", f"{instruction} if {condition}"]), f"if {test} : {line}"
    if form == 2:
        rows = rng.choice(LISTS)
        return rng.choice(
            [f"for each row of {rows} {instruction}", f"{instruction} for each row of {rows}"]
        ), f"for row in {rows} : {line}"
    condition, test = _test(rng)
    return rng.choice([f"while {condition} {instruction}", f"{instruction} as long as {condition}"]), f"while {test} : {line}"


# ---- files

PAIRS = {"pies": (pies, 500), "crossing": (crossing, 500), "talk": (talk, 600), "code": (code, 700)}


def texts(*, times: int = 1) -> dict[str, str]:
    """The contents of all files, by their path relative to data/."""
    contents = {
        "students.txt": students(StableRandom(1)),
        "writers.txt": writers(StableRandom(2), 1200 * times),
        "../suites/writers.tsv": writers_suite(StableRandom(3), 120),
    }
    for seed, (name, (generate, number)) in enumerate(PAIRS.items(), 4):
        contents[f"{name}.tsv"] = pairs_tsv(distinct(generate, number * times, StableRandom(seed)))
    return contents


if __name__ == "__main__":
    write_files(__doc__, lambda times: texts(times=times), "examples")
