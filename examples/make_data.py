"""Write the pairs of the examples, all generated: python examples/make_data.py [--output-dir DIR] [--times N]

letters.txt, reversed.txt      strings of letters, and the same reversed: for the copy and reverse tasks
numbers.tsv                    "40,307" and "forty thousand three hundred seven"
sentences.en, sentences.de     sentences about animals and people in English and German: verbs move, articles and adjectives
                               agree with their nouns
sounds.tsv                     invented words in Italian spelling and their sounds (SAMPA): ch k, c before e and i tS, gn J
spelling.tsv                   misspelled words and their corrections
notices.tsv                    short notices and their headlines
orders.tsv                     requests with codes that occur once, and the codes: for the copy mechanism
arithmetic.tsv                 sums and products, and their trees in brackets

--times 10 makes ten times as many pairs. The files in the repository were made without it.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

T = TypeVar("T")
Pair = tuple[str, str]


class Chance:
    """Only `random()` is used: of all that the module offers, it alone is promised to stay the same."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed).random

    def below(self, number: int) -> int:
        return int(self.random() * number)

    def pick(self, options: Sequence[T]) -> T:
        return options[self.below(len(options))]


def distinct(make: Callable[[], Pair], number: int) -> list[Pair]:
    """This many pairs with different sources, so that no test source is in the training data."""
    found: dict[str, str] = {}
    while len(found) < number:
        source, target = make()
        found.setdefault(source, target)
    return list(found.items())


# ---- letters

LETTERS = "abcdefghij"


def letters(chance: Chance) -> Pair:
    text = "".join(chance.pick(LETTERS) for _ in range(3 + chance.below(8)))
    return text, text[::-1]


# ---- numbers

# fmt: off
SMALL = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "thirteen",
         "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"]
TENS = ["", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
# fmt: on


def _below_thousand(number: int) -> Iterator[str]:
    if number >= 100:
        yield from (SMALL[number // 100], "hundred")
    rest = number % 100
    if rest >= 20:
        yield TENS[rest // 10] + (f"-{SMALL[rest % 10]}" if rest % 10 else "")
    elif rest:
        yield SMALL[rest]


def in_words(number: int) -> str:
    """Of a number below a million."""
    thousands = [*_below_thousand(number // 1000), "thousand"] if number >= 1000 else []
    return " ".join([*thousands, *_below_thousand(number % 1000)]) or SMALL[0]


def numbers(chance: Chance) -> Pair:
    number = chance.below(10 ** (2 + chance.below(5)))  # two to six digits, about as often
    return f"{number:,}", in_words(number)


# ---- sentences


class Noun(NamedTuple):
    english: tuple[str, str]  # singular, plural
    german: tuple[str, str]
    gender: str


class Verb(NamedTuple):
    english: tuple[str, str, str]  # sees, see, seen
    german: tuple[str, str, str]  # sieht, sehen, gesehen


# fmt: off
NOUNS = [
    Noun(("dog", "dogs"), ("Hund", "Hunde"), "m"), Noun(("cat", "cats"), ("Katze", "Katzen"), "f"),
    Noun(("child", "children"), ("Kind", "Kinder"), "n"), Noun(("woman", "women"), ("Frau", "Frauen"), "f"),
    Noun(("man", "men"), ("Mann", "Männer"), "m"), Noun(("bird", "birds"), ("Vogel", "Vögel"), "m"),
    Noun(("horse", "horses"), ("Pferd", "Pferde"), "n"), Noun(("mouse", "mice"), ("Maus", "Mäuse"), "f"),
    Noun(("teacher", "teachers"), ("Lehrer", "Lehrer"), "m"), Noun(("calf", "calves"), ("Kalb", "Kälber"), "n"),
]
VERBS = [
    Verb(("sees", "see", "seen"), ("sieht", "sehen", "gesehen")), Verb(("hears", "hear", "heard"), ("hört", "hören", "gehört")),
    Verb(("finds", "find", "found"), ("findet", "finden", "gefunden")),
    Verb(("seeks", "seek", "sought"), ("sucht", "suchen", "gesucht")),
    Verb(("knows", "know", "known"), ("kennt", "kennen", "gekannt")),
    Verb(("loves", "love", "loved"), ("liebt", "lieben", "geliebt")),
]
ADJECTIVES = [("old", "alt"), ("small", "klein"), ("big", "groß"), ("quick", "schnell"), ("tired", "müd"), ("young", "jung")]
TIMES = [("today", "heute"), ("often", "oft"), ("now", "jetzt"), ("at night", "nachts")]
# by gender or p for plural: nominative, accusative
THE = {"m": ("der", "den"), "f": ("die", "die"), "n": ("das", "das"), "p": ("die", "die")}
A = {"m": ("ein", "einen"), "f": ("eine", "eine"), "n": ("ein", "ein")}
AFTER_THE = {"m": ("e", "en"), "f": ("e", "e"), "n": ("e", "e"), "p": ("en", "en")}
AFTER_A = {"m": ("er", "en"), "f": ("e", "e"), "n": ("es", "es")}
# fmt: on


def _phrase(chance: Chance, case: int) -> tuple[str, str, int]:
    """'a small dog', 'einen kleinen Hund', and whether there are several."""
    noun, plural = chance.pick(NOUNS), chance.below(2)
    form = "p" if plural else noun.gender
    definite = bool(plural) or chance.below(2) == 0
    article, endings = (THE, AFTER_THE) if definite else (A, AFTER_A)
    adjective = chance.pick(ADJECTIVES) if chance.below(2) else None
    english = ["the" if definite else "a", *([adjective[0]] if adjective else []), noun.english[plural]]
    german = [article[form][case], *([adjective[1] + endings[form][case]] if adjective else []), noun.german[plural]]
    if english[0] == "a" and english[1][0] in "aeiou":
        english[0] = "an"
    return " ".join(english), " ".join(german), plural


class Clause(NamedTuple):
    """Who does what to whom; German puts the verb in several places."""

    english: str
    subject: str
    finite: str
    rest: str  # object, and a participle behind it

    def main(self) -> str:
        return f"{self.subject} {self.finite} {self.rest}"

    def turned(self) -> str:
        """After a word in front the verb still comes second."""
        return f"{self.finite} {self.subject} {self.rest}"

    def subordinate(self) -> str:
        return f"{self.subject} {self.rest} {self.finite}"


def _clause(chance: Chance) -> Clause:
    (who, wer, plural), (whom, wen, _), verb = _phrase(chance, 0), _phrase(chance, 1), chance.pick(VERBS)
    if chance.below(3):
        return Clause(f"{who} {verb.english[plural]} {whom}", wer, verb.german[plural], wen)
    has, hat = ("has", "hat") if not plural else ("have", "haben")
    return Clause(f"{who} {has} {verb.english[2]} {whom}", wer, hat, f"{wen} {verb.german[2]}")


def sentences(chance: Chance) -> Pair:
    one, kind = _clause(chance), chance.below(4)
    if kind == 0:
        return f"{one.english} .", f"{one.main()} ."
    if kind == 1:
        time, zeit = chance.pick(TIMES)
        return f"{time} {one.english} .", f"{zeit} {one.turned()} ."
    other = _clause(chance)
    if kind == 2:
        return f"{one.english} because {other.english} .", f"{one.main()} , weil {other.subordinate()} ."
    return f"we know that {other.english} .", f"wir wissen , dass {other.subordinate()} ."


# ---- sounds

# fmt: off
ONSETS = ["b", "c", "ch", "d", "f", "g", "gh", "gn", "l", "m", "n", "p", "qu", "r", "s", "sc", "t", "v", "z", "tt", "cc", "ll",
          "ss", "br", "tr", "gr"]
SIMPLE = ["", *(onset for onset in ONSETS if onset not in ("tt", "cc", "ll", "ss"))]  # a word begins with one of these
# what is spelt, what follows it, and how it sounds; the first that fits
RULES: list[tuple[str, str, str]] = [
    ("scia", "", "S a"), ("scio", "", "S o"), ("sciu", "", "S u"), ("sc", "ei", "S"), ("gnia", "", "J a"), ("gn", "", "J"),
    ("glia", "", "L a"), ("glio", "", "L o"), ("gl", "i", "L"),
    ("ccia", "", "tS: a"), ("ccio", "", "tS: o"), ("cc", "ei", "tS:"), ("cch", "", "k:"), ("cc", "", "k:"),
    ("cia", "", "tS a"), ("cio", "", "tS o"), ("ciu", "", "tS u"), ("ch", "", "k"), ("c", "ei", "tS"), ("c", "", "k"),
    ("gia", "", "dZ a"), ("gio", "", "dZ o"), ("giu", "", "dZ u"), ("gh", "", "g"), ("g", "ei", "dZ"), ("qu", "", "k w"),
    ("tt", "", "t:"), ("ll", "", "l:"), ("ss", "", "s:"), ("z", "", "ts"),
]
# fmt: on


def _one_sound(word: str, at: int) -> tuple[int, str]:
    """How many letters the sound at a place takes, and the sound."""
    for spelt, before, sound in RULES:
        follows = word[at + len(spelt) : at + len(spelt) + 1]
        if word.startswith(spelt, at) and (not before or (follows and follows in before)):
            return len(spelt), sound
    around = word[at - 1 : at] + word[at + 1 : at + 2]
    between = len(around) == 2 and all(letter in "aeiou" for letter in around)
    return 1, "z" if word[at] == "s" and between else word[at]


def sound(word: str) -> str:
    """'chiesa' -> 'k i e z a'."""
    at, found = 0, []
    while at < len(word):
        taken, one = _one_sound(word, at)
        found.append(one)
        at += taken
    return " ".join(found)


def sounds(chance: Chance) -> Pair:
    word = chance.pick(SIMPLE) + chance.pick(["a", "e", "i", "o", "ia", "io", "u"])
    for _ in range(1 + chance.below(3)):
        word += chance.pick(["", "", "", "n", "r"] if word[-1] in "aeiou" else [""])
        onset = chance.pick(ONSETS if word[-1] in "aeiou" else SIMPLE[1:])
        word += onset + chance.pick(["a", "e", "i", "o"])
    return word, sound(word)


# ---- spelling

LIST = """
accept across address again almost already although always amount answer appear arrive attempt balance because become
before begin behind believe between bicycle bottle bottom branch breakfast bridge bright brother business calendar
careful castle caught ceiling century certain chapter cheese children chocolate choice circle climb clothes coffee
colour comfort common complete concert copper corner correct cotton country cousin cover cross crowd daughter decide
deliver depend describe different difficult dinner discover distance doctor double during early eight either electric
eleven empty enough entrance equal evening every except excuse exercise expect explain famous favourite field fifteen
fight finish flower follow foreign forest forget fortune forward fourth freeze friend frozen further garden gather
general gentle glasses government grammar ground guess guide happen happy harbour height honest hospital hundred hurry
imagine important inside instead invite island journey judge kitchen knife knock knowledge ladder language large laugh
lawyer learn leather lesson letter library listen little luggage machine manage market matter maybe measure medicine
member message middle million minute mirror moment morning mountain muscle narrow nature necessary neighbour nephew
niece notice number object occasion office often opinion opposite orange ordinary outside owner paper parcel parent
people pepper perhaps piece pleasant please pocket police possible pretty prison private promise proper quarter question
quiet rabbit really receive recent regular remember repeat restaurant return rough rubber sandwich scene school science
scissors season second secret separate seven shoulder silver similar simple sister soldier special spring square station
stomach stranger street strong sudden sugar summer supper surface surprise swimming table taught temper theatre thirsty
thorough thought thousand through together tomorrow tongue toward traffic travel trouble twelve umbrella uncle until
usual valley village visit voice wander watch weather weight whether whistle whole window winter without woman wonder
worry writing yellow yesterday young
"""
WORDS = LIST.split()
CONFUSED = {"a": "e", "e": "i", "i": "e", "o": "u", "u": "o", "c": "k", "s": "c", "k": "c", "y": "i", "f": "ph", "m": "n"}


def _misspelt(chance: Chance, word: str) -> str:
    """With one slip of the pen: letters swapped, dropped, doubled or confused; never the first."""
    at, slip = 1 + chance.below(len(word) - 1), chance.below(4)
    if slip == 0:
        at = min(at, len(word) - 2)
        return word[:at] + word[at + 1] + word[at] + word[at + 2 :]
    if slip == 1:
        return word[:at] + word[at + 1 :]
    if slip == 2:
        return word[:at] + word[at] + word[at:]
    return word[:at] + CONFUSED.get(word[at], word[at] * 2) + word[at + 1 :]


def spelling(chance: Chance) -> Pair:
    while True:
        word = chance.pick(WORDS)
        wrong = _misspelt(chance, word)
        if wrong not in WORDS:
            return wrong, word


# ---- notices

# fmt: off
PLACES = ["library", "swimming pool", "post office", "town hall", "bakery", "school", "museum", "theatre", "ferry", "market"]
STREETS = ["Mill Street", "Harbour Road", "Oak Lane", "Station Square", "King Street", "River Walk", "Church Hill", "East Gate"]
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
REASONS = ["repairs to the roof", "a broken pipe", "the holiday", "a lack of staff", "the storm", "works on the heating",
           "a fire drill"]
PETS = ["grey cat", "black dog", "white rabbit", "green parrot", "brown pony", "spotted dog", "old tortoise"]
EVENTS = ["concert", "flower show", "football match", "book sale", "dance class", "chess evening", "boat race"]
ASIDES = ["We are sorry for the trouble.", "Please tell your neighbours.", "All are welcome as usual.",
          "Thank you for your patience.", "The staff will be glad to help.", "Ask at the desk if you are in doubt.",
          "Bring a warm coat."]
# fmt: on


def notices(chance: Chance) -> Pair:
    place, street, day, other = (chance.pick(words) for words in (PLACES, STREETS, DAYS, DAYS))
    reason, pet, event, aside = (chance.pick(words) for words in (REASONS, PETS, EVENTS, ASIDES))
    body, headline = chance.pick(
        [
            (
                f"Because of {reason} the {place} on {street} will not open its doors on {day}. It is open again on {other}.",
                f"{place} on {street} closed on {day}",
            ),
            (
                f"Last {day} a {pet} was seen near the {place} on {street}. Whoever misses one may call there until {other}.",
                f"{pet} found on {street}",
            ),
            (
                f"The {event} planned for {day} has been moved to {other}. It takes place at the {place} on {street}.",
                f"{event} moved to {other}",
            ),
            (
                f"On {day} there will be no {event} at the {place}. The reason is {reason}.",
                f"no {event} on {day}",
            ),
        ]
    )
    return f"{body} {aside}" if chance.below(2) else f"{aside} {body}", headline


# ---- orders

OPENINGS = ["please send", "could you bring", "we still miss", "has anyone seen", "do not lose", "put away"]
THINGS = ["parcel", "box", "letter", "case", "crate"]
GOALS = ["for room", "of room", "to room", "at desk", "on shelf"]


def _code(chance: Chance) -> str:
    return "".join(chance.pick("BCDFGHJKLMNPQRSTVWXZ") for _ in range(2)) + f"-{chance.below(9000) + 1000}"


def orders(chance: Chance) -> Pair:
    code, goal = _code(chance), chance.below(900) + 100
    text = f"{chance.pick(OPENINGS)} {chance.pick(THINGS)} {code} {chance.pick(GOALS)} {goal}"
    return text, f"{code} {goal}"


# ---- arithmetic

OPERATORS = {"+": 1, "-": 1, "*": 2, "/": 2}  # how strongly they bind
LEAVES = "abcxyz123456789"


class Tree(NamedTuple):
    infix: str
    brackets: str
    binds: int = 3


def _tree(chance: Chance, depth: int) -> Tree:
    """A term with brackets only where they are needed: that is what a parser must know."""
    if not depth or chance.below(4) == 0:
        leaf = chance.pick(LEAVES)
        return Tree(leaf, leaf)
    operator = chance.pick(list(OPERATORS))
    binds, left, right = OPERATORS[operator], _tree(chance, depth - 1), _tree(chance, depth - 1)
    before = f"( {left.infix} )" if left.binds < binds else left.infix
    after = f"( {right.infix} )" if right.binds <= binds else right.infix
    return Tree(f"{before} {operator} {after}", f"( {operator} {left.brackets} {right.brackets} )", binds)


def arithmetic(chance: Chance) -> Pair:
    while True:
        tree = _tree(chance, 3 if chance.below(4) == 0 else 2)  # mostly up to four leaves, some up to eight
        if " " in tree.infix:
            return tree.infix, tree.brackets


# ---- files


class Made(NamedTuple):
    make: Callable[[Chance], Pair]
    number: int
    parallel: tuple[str, str] | None = None  # two files, not a table


FILES = {
    "letters": Made(letters, 1200, ("letters.txt", "reversed.txt")),
    "numbers": Made(numbers, 800),
    "sentences": Made(sentences, 700, ("sentences.en", "sentences.de")),
    "sounds": Made(sounds, 900),
    "spelling": Made(spelling, 1200),
    "notices": Made(notices, 200),
    "orders": Made(orders, 500),
    "arithmetic": Made(arithmetic, 1500),
}


def texts(*, times: int = 1) -> dict[str, str]:
    """What every file holds, by its name."""
    found: dict[str, str] = {}
    for seed, (name, made) in enumerate(FILES.items(), 1):
        chance = Chance(seed)
        pairs = distinct(lambda make=made.make, chance=chance: make(chance), made.number * times)
        if made.parallel is None:
            found[f"{name}.tsv"] = "source\ttarget\n" + "".join(f"{source}\t{target}\n" for source, target in pairs)
        else:
            found |= {file: "".join(f"{pair[side]}\n" for pair in pairs) for side, file in enumerate(made.parallel)}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--output-dir", type=Path, default=Path(__file__).parent / "data", help="output directory (examples/data)"
    )
    parser.add_argument("--times", type=int, default=1, help="multiply the number of pairs (1)")
    chosen = parser.parse_args()
    chosen.output_dir.mkdir(parents=True, exist_ok=True)
    for name, text in texts(times=chosen.times).items():
        (chosen.output_dir / name).write_bytes(text.encode())


if __name__ == "__main__":
    main()
