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

from collections.abc import Callable, Iterator
from typing import NamedTuple

from _shared import StableRandom, distinct, pairs_tsv, write_files

Pair = tuple[str, str]


# ---- letters

LETTERS = "abcdefghij"


def letters(rng: StableRandom) -> Pair:
    text = "".join(rng.choice(LETTERS) for _ in range(3 + rng.below(8)))
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
    """A number below a million in words."""
    thousands = [*_below_thousand(number // 1000), "thousand"] if number >= 1000 else []
    return " ".join([*thousands, *_below_thousand(number % 1000)]) or SMALL[0]


def numbers(rng: StableRandom) -> Pair:
    number = rng.below(10 ** (2 + rng.below(5)))  # two to six digits with equal probability
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


def _phrase(rng: StableRandom, case: int) -> tuple[str, str, int]:
    """'a small dog', 'einen kleinen Hund', and 1 if the noun is plural."""
    noun, plural = rng.choice(NOUNS), rng.below(2)
    form = "p" if plural else noun.gender
    definite = bool(plural) or rng.below(2) == 0
    article, endings = (THE, AFTER_THE) if definite else (A, AFTER_A)
    adjective = rng.choice(ADJECTIVES) if rng.below(2) else None
    english = ["the" if definite else "a", *([adjective[0]] if adjective else []), noun.english[plural]]
    german = [article[form][case], *([adjective[1] + endings[form][case]] if adjective else []), noun.german[plural]]
    if english[0] == "a" and english[1][0] in "aeiou":
        english[0] = "an"
    return " ".join(english), " ".join(german), plural


class Clause(NamedTuple):
    """An English clause and the parts of the German one, in which the verb moves."""

    english: str
    subject: str
    finite: str
    rest: str  # object and participle

    def main(self) -> str:
        return f"{self.subject} {self.finite} {self.rest}"

    def inverted(self) -> str:
        """After an adverb, the verb comes before the subject."""
        return f"{self.finite} {self.subject} {self.rest}"

    def subordinate(self) -> str:
        return f"{self.subject} {self.rest} {self.finite}"


def _clause(rng: StableRandom) -> Clause:
    (who, wer, plural), (whom, wen, _), verb = _phrase(rng, 0), _phrase(rng, 1), rng.choice(VERBS)
    if rng.below(3):
        return Clause(f"{who} {verb.english[plural]} {whom}", wer, verb.german[plural], wen)
    has, hat = ("has", "hat") if not plural else ("have", "haben")
    return Clause(f"{who} {has} {verb.english[2]} {whom}", wer, hat, f"{wen} {verb.german[2]}")


def sentences(rng: StableRandom) -> Pair:
    clause, form = _clause(rng), rng.below(4)
    if form == 0:
        return f"{clause.english} .", f"{clause.main()} ."
    if form == 1:
        time, zeit = rng.choice(TIMES)
        return f"{time} {clause.english} .", f"{zeit} {clause.inverted()} ."
    second = _clause(rng)
    if form == 2:
        return f"{clause.english} because {second.english} .", f"{clause.main()} , weil {second.subordinate()} ."
    return f"we know that {second.english} .", f"wir wissen , dass {second.subordinate()} ."


# ---- sounds

# fmt: off
ONSETS = ["b", "c", "ch", "d", "f", "g", "gh", "gn", "l", "m", "n", "p", "qu", "r", "s", "sc", "t", "v", "z", "tt", "cc", "ll",
          "ss", "br", "tr", "gr"]
SIMPLE = ["", *(onset for onset in ONSETS if onset not in ("tt", "cc", "ll", "ss"))]  # at the beginning of a word
# letters, the letters that must follow, and sounds; the first match counts
RULES: list[tuple[str, str, str]] = [
    ("scia", "", "S a"), ("scio", "", "S o"), ("sciu", "", "S u"), ("sc", "ei", "S"), ("gnia", "", "J a"), ("gn", "", "J"),
    ("glia", "", "L a"), ("glio", "", "L o"), ("gl", "i", "L"),
    ("ccia", "", "tS: a"), ("ccio", "", "tS: o"), ("cc", "ei", "tS:"), ("cch", "", "k:"), ("cc", "", "k:"),
    ("cia", "", "tS a"), ("cio", "", "tS o"), ("ciu", "", "tS u"), ("ch", "", "k"), ("c", "ei", "tS"), ("c", "", "k"),
    ("gia", "", "dZ a"), ("gio", "", "dZ o"), ("giu", "", "dZ u"), ("gh", "", "g"), ("g", "ei", "dZ"), ("qu", "", "k w"),
    ("tt", "", "t:"), ("ll", "", "l:"), ("ss", "", "s:"), ("z", "", "ts"),
]
# fmt: on


def _next_sound(word: str, position: int) -> tuple[int, str]:
    """The number of letters of the sound at a position, and the sound."""
    for letters, followers, sound in RULES:
        end = position + len(letters)
        following = word[end : end + 1]
        if word.startswith(letters, position) and (not followers or (following and following in followers)):
            return len(letters), sound
    neighbors = word[position - 1 : position] + word[position + 1 : position + 2]
    is_between_vowels = len(neighbors) == 2 and all(letter in "aeiou" for letter in neighbors)
    return 1, "z" if word[position] == "s" and is_between_vowels else word[position]


def sound(word: str) -> str:
    """'chiesa' -> 'k i e z a'."""
    position, sounds = 0, []
    while position < len(word):
        length, next_sound = _next_sound(word, position)
        sounds.append(next_sound)
        position += length
    return " ".join(sounds)


def pronunciations(rng: StableRandom) -> Pair:
    word = rng.choice(SIMPLE) + rng.choice(["a", "e", "i", "o", "ia", "io", "u"])
    for _ in range(1 + rng.below(3)):
        word += rng.choice(["", "", "", "n", "r"] if word[-1] in "aeiou" else [""])
        onset = rng.choice(ONSETS if word[-1] in "aeiou" else SIMPLE[1:])
        word += onset + rng.choice(["a", "e", "i", "o"])
    return word, sound(word)


# ---- spelling

WORD_LIST = """
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
WORDS = WORD_LIST.split()
CONFUSED = {"a": "e", "e": "i", "i": "e", "o": "u", "u": "o", "c": "k", "s": "c", "k": "c", "y": "i", "f": "ph", "m": "n"}


def _misspell(rng: StableRandom, word: str) -> str:
    """Swap, delete, double or confuse letters at one position, never the first."""
    i, error = 1 + rng.below(len(word) - 1), rng.below(4)
    if error == 0:
        i = min(i, len(word) - 2)
        return word[:i] + word[i + 1] + word[i] + word[i + 2 :]
    if error == 1:
        return word[:i] + word[i + 1 :]
    if error == 2:
        return word[:i] + word[i] + word[i:]
    return word[:i] + CONFUSED.get(word[i], word[i] * 2) + word[i + 1 :]


def spelling(rng: StableRandom) -> Pair:
    while True:
        word = rng.choice(WORDS)
        misspelled = _misspell(rng, word)
        if misspelled not in WORDS:
            return misspelled, word


# ---- notices

# fmt: off
PLACES = ["library", "swimming pool", "post office", "town hall", "bakery", "school", "museum", "theatre", "ferry", "market"]
STREETS = ["Mill Street", "Harbour Road", "Oak Lane", "Station Square", "King Street", "River Walk", "Church Hill", "East Gate"]
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
REASONS = ["repairs to the roof", "a broken pipe", "the holiday", "a lack of staff", "the storm", "works on the heating",
           "a fire drill"]
PETS = ["grey cat", "black dog", "white rabbit", "green parrot", "brown pony", "spotted dog", "old tortoise"]
EVENTS = ["concert", "flower show", "football match", "book sale", "dance class", "chess evening", "boat race"]
REMARKS = ["We are sorry for the trouble.", "Please tell your neighbours.", "All are welcome as usual.",
          "Thank you for your patience.", "The staff will be glad to help.", "Ask at the desk if you are in doubt.",
          "Bring a warm coat."]
# fmt: on


def notices(rng: StableRandom) -> Pair:
    place, street, day, later = (rng.choice(words) for words in (PLACES, STREETS, DAYS, DAYS))
    reason, pet, event, remark = (rng.choice(words) for words in (REASONS, PETS, EVENTS, REMARKS))
    body, headline = rng.choice(
        [
            (
                f"Because of {reason} the {place} on {street} will not open its doors on {day}. It is open again on {later}.",
                f"{place} on {street} closed on {day}",
            ),
            (
                f"Last {day} a {pet} was seen near the {place} on {street}. Whoever misses one may call there until {later}.",
                f"{pet} found on {street}",
            ),
            (
                f"The {event} planned for {day} has been moved to {later}. It takes place at the {place} on {street}.",
                f"{event} moved to {later}",
            ),
            (
                f"On {day} there will be no {event} at the {place}. The reason is {reason}.",
                f"no {event} on {day}",
            ),
        ]
    )
    return f"{body} {remark}" if rng.below(2) else f"{remark} {body}", headline


# ---- orders

OPENINGS = ["please send", "could you bring", "we still miss", "has anyone seen", "do not lose", "put away"]
THINGS = ["parcel", "box", "letter", "case", "crate"]
GOALS = ["for room", "of room", "to room", "at desk", "on shelf"]


def _code(rng: StableRandom) -> str:
    return "".join(rng.choice("BCDFGHJKLMNPQRSTVWXZ") for _ in range(2)) + f"-{rng.below(9000) + 1000}"


def orders(rng: StableRandom) -> Pair:
    code, goal = _code(rng), rng.below(900) + 100
    text = f"{rng.choice(OPENINGS)} {rng.choice(THINGS)} {code} {rng.choice(GOALS)} {goal}"
    return text, f"{code} {goal}"


# ---- arithmetic

OPERATORS = {"+": 1, "-": 1, "*": 2, "/": 2}  # precedence
LEAVES = "abcxyz123456789"


class Tree(NamedTuple):
    infix: str
    brackets: str
    precedence: int = 3


def _tree(rng: StableRandom, depth: int) -> Tree:
    """An expression without redundant brackets, so that a parser must know the precedence of operators."""
    if not depth or rng.below(4) == 0:
        leaf = rng.choice(LEAVES)
        return Tree(leaf, leaf)
    operator = rng.choice(list(OPERATORS))
    precedence, left, right = OPERATORS[operator], _tree(rng, depth - 1), _tree(rng, depth - 1)
    left_infix = f"( {left.infix} )" if left.precedence < precedence else left.infix
    right_infix = f"( {right.infix} )" if right.precedence <= precedence else right.infix
    brackets = f"( {operator} {left.brackets} {right.brackets} )"
    return Tree(f"{left_infix} {operator} {right_infix}", brackets, precedence)


def arithmetic(rng: StableRandom) -> Pair:
    while True:
        tree = _tree(rng, 3 if rng.below(4) == 0 else 2)  # mostly up to four leaves, some up to eight
        if " " in tree.infix:
            return tree.infix, tree.brackets


# ---- files


class Generator(NamedTuple):
    generate: Callable[[StableRandom], Pair]
    number: int
    parallel_files: tuple[str, str] | None = None  # None: a TSV file


FILES = {
    "letters": Generator(letters, 1200, ("letters.txt", "reversed.txt")),
    "numbers": Generator(numbers, 800),
    "sentences": Generator(sentences, 700, ("sentences.en", "sentences.de")),
    "sounds": Generator(pronunciations, 900),
    "spelling": Generator(spelling, 1200),
    "notices": Generator(notices, 200),
    "orders": Generator(orders, 500),
    "arithmetic": Generator(arithmetic, 1500),
}


def texts(*, times: int = 1) -> dict[str, str]:
    """The contents of all files, by name."""
    contents: dict[str, str] = {}
    for seed, (name, generator) in enumerate(FILES.items(), 1):
        pairs = distinct(generator.generate, generator.number * times, StableRandom(seed))
        if generator.parallel_files is None:
            contents[f"{name}.tsv"] = pairs_tsv(pairs)
        else:
            contents |= {file: "".join(f"{pair[i]}\n" for pair in pairs) for i, file in enumerate(generator.parallel_files)}
    return contents


if __name__ == "__main__":
    write_files(__doc__, lambda times: texts(times=times), "pairs")
