"""Languages of translating runs: their names, which run translates from one to another, and which language a text is in."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import NamedTuple

from weft.errors import DataError, UsageError, WeftError, unknown_name
from weft.runs.run import AnyRun
from weft.serve.engine import Engine

DEFAULT_CODES = ("source", "target")  # of a single run whose languages are not named
MAX_PAIRS = 2000  # pairs of the training data that are read to learn what a language looks like
MAX_CHARS = 500  # of each text
ORDERS = (1, 2, 3)  # of character n-grams
SMOOTHING = 0.5
MIN_CHARS = 200  # of the texts of a language; fewer say too little
_CODE = re.compile("[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8}){0,3}")

# ISO 639-1, as LibreTranslate calls them
# fmt: off
NAMES = {
    "ar": "Arabic", "az": "Azerbaijani", "bg": "Bulgarian", "bn": "Bengali", "bs": "Bosnian", "ca": "Catalan", "cs": "Czech",
    "cy": "Welsh", "da": "Danish", "de": "German", "el": "Greek", "en": "English", "eo": "Esperanto", "es": "Spanish",
    "et": "Estonian", "eu": "Basque", "fa": "Persian", "fi": "Finnish", "fr": "French", "ga": "Irish", "gl": "Galician",
    "gu": "Gujarati", "he": "Hebrew", "hi": "Hindi", "hr": "Croatian", "hu": "Hungarian", "hy": "Armenian",
    "id": "Indonesian", "is": "Icelandic", "it": "Italian", "ja": "Japanese", "ka": "Georgian", "kk": "Kazakh",
    "ko": "Korean", "ky": "Kyrgyz", "la": "Latin", "lb": "Luxembourgish", "lt": "Lithuanian", "lv": "Latvian",
    "mk": "Macedonian", "mn": "Mongolian", "ms": "Malay", "mt": "Maltese", "nb": "Norwegian", "ne": "Nepali", "nl": "Dutch",
    "nn": "Nynorsk", "no": "Norwegian", "pl": "Polish", "pt": "Portuguese", "ro": "Romanian", "ru": "Russian", "sk": "Slovak",
    "sl": "Slovenian", "sq": "Albanian", "sr": "Serbian", "sv": "Swedish", "sw": "Swahili", "ta": "Tamil", "te": "Telugu",
    "th": "Thai", "tl": "Tagalog", "tr": "Turkish", "uk": "Ukrainian", "ur": "Urdu", "uz": "Uzbek", "vi": "Vietnamese",
    "zh": "Chinese", "source": "Source", "target": "Target",
}
# fmt: on


def language_name(code: str) -> str:
    """The English name of a language; its code if the name is not known."""
    return NAMES.get(code, NAMES.get(code.partition("-")[0].lower(), code))


class Pair(NamedTuple):
    """The languages that a run translates from and to."""

    source: str
    target: str


def parse_languages(words: Iterable[str], runs: Sequence[str]) -> dict[str, Pair]:
    """Language pairs by run: each word is NAME=SOURCE,TARGET, or SOURCE,TARGET if there is one run."""
    pairs = dict[str, Pair]()
    for word in words:
        name, equals, codes = word.rpartition("=")
        if not equals and len(runs) != 1:
            raise UsageError("languages", f"{word!r} does not name a run", "use NAME=SOURCE,TARGET")
        name = name if equals else runs[0]
        if name not in runs:
            raise UsageError("languages", *unknown_name("run", name, runs))
        source, _, target = codes.partition(",")
        if not (_CODE.fullmatch(source) and _CODE.fullmatch(target)) or source == target or "auto" in (source, target):
            raise UsageError("languages", f"{codes!r} is not a pair of languages", "use two codes, such as de,en")
        if name in pairs:
            raise UsageError("languages", f"run {name!r} has two pairs", "name each run once")
        if Pair(source, target) in pairs.values():
            raise UsageError("languages", f"two runs translate {codes}", "serve one of them")
        pairs[name] = Pair(source, target)
    return pairs


def translates(run: AnyRun) -> bool:
    """Whether a run predicts a text from a text."""
    decode = run.spec.decode
    return decode is not None and decode.encode_source is not None and run.spec.inputs(run.config).kind == "text"


class Languages:
    """The language pairs of an engine.

    Args:
        engine: The runs.
        pairs: The languages of runs by name. If it is empty and one run translates, its languages are "source" and "target".
    """

    def __init__(self, engine: Engine, pairs: Mapping[str, Pair]) -> None:
        self._engine = engine
        able = [name for name, served in engine.runs.items() if translates(served.run)]
        for name in pairs:
            if name not in able:
                noun = engine.served(name).run.spec.model_noun
                raise UsageError("languages", f"run {name!r} is a {noun}, which does not translate")
        self.pairs = dict(pairs) or ({able[0]: Pair(*DEFAULT_CODES)} if len(able) == 1 else {})

    @cached_property
    def codes(self) -> list[str]:
        """All languages, sources first."""
        sources, targets = [pair.source for pair in self.pairs.values()], [pair.target for pair in self.pairs.values()]
        return list(dict.fromkeys([*sources, *targets]))

    def targets(self, source: str) -> list[str]:
        """The languages that a language is translated to, and itself."""
        return sorted({source, *(pair.target for pair in self.pairs.values() if pair.source == source)})

    def run_for(self, source: str, target: str) -> str | None:
        """The name of the run that translates; None if the languages are the same, so that there is nothing to do."""
        for where, code in (("source", source), ("target", target)):
            if code not in self.codes:
                fix = f"choose from {', '.join(self.codes)}" if self.codes else "no run translates"
                raise UsageError(where, f"{code} is not supported", fix)
        if source == target:
            return None
        name = next((name for name, pair in self.pairs.items() if pair == (source, target)), None)
        if name is None:
            problem = f"{target} is not available as a target language from {source}"
            raise UsageError("target", problem, f"choose from {', '.join(self.targets(source))}")
        return name

    @cached_property
    def detector(self) -> Detector | str:
        """Learned from the training data of the runs; the reason if that is not possible."""
        texts: dict[str, list[str]] = {code: [] for code in self.codes}
        try:
            for name, pair in self.pairs.items():
                for source, target in training_pairs(self._engine.served(name).run):
                    texts[pair.source].append(source)
                    texts[pair.target].append(target)
            return Detector(texts)
        except (WeftError, OSError) as error:
            return error.problem if isinstance(error, UsageError) else "the training data cannot be read"


def training_pairs(run: AnyRun) -> list[tuple[str, str]]:
    """The first pairs of the training data of a run."""
    datasets, data = run.config.datasets, run.spec.data
    if "train" not in datasets:
        raise DataError("data", "the run has no training data")
    pairs = islice(data.input_output_pairs(datasets["train"]), MAX_PAIRS)
    return [(source[:MAX_CHARS], (target or "")[:MAX_CHARS]) for source, target in pairs]


def ngrams(text: str) -> list[str]:
    """The character n-grams of a text, with a space at each end."""
    text = f" {' '.join(text.lower().split())} "
    return [text[start : start + order] for order in ORDERS for start in range(len(text) - order + 1)]


class Detection(NamedTuple):
    language: str
    confidence: float  # from 0 to 100


class Detector:
    """Naive Bayes over character n-grams of the texts of each language."""

    def __init__(self, texts: Mapping[str, Sequence[str]]) -> None:
        self._counts = {code: Counter(gram for text in examples for gram in ngrams(text)) for code, examples in texts.items()}
        small = [code for code, examples in texts.items() if sum(map(len, examples)) < MIN_CHARS]
        if small or len(texts) < 2:
            raise UsageError("languages", f"the training data has too little text of {', '.join(small) or 'two languages'}")
        self._vocabulary = len(set[str]().union(*self._counts.values()))
        self._totals = {code: counts.total() for code, counts in self._counts.items()}

    def detect(self, text: str) -> list[Detection]:
        """All languages with their probability in percent, the most probable first; 0 if nothing of the text is known."""
        grams = [gram for gram in ngrams(text[:MAX_CHARS]) if any(gram in counts for counts in self._counts.values())]
        if not any(gram.strip() for gram in grams):
            return [Detection(code, 0.0) for code in self._counts]
        scores = {code: self._log_likelihood(code, grams) for code in self._counts}
        best = max(scores.values())
        weights = {code: math.exp(score - best) for code, score in scores.items()}
        total = sum(weights.values())
        found = [Detection(code, round(100 * weight / total, 2)) for code, weight in weights.items()]
        return sorted(found, key=lambda each: -each.confidence)

    def _log_likelihood(self, code: str, grams: Sequence[str]) -> float:
        # every character is in an n-gram of each order, so the sum counts it that many times
        counts, total = self._counts[code], self._totals[code] + SMOOTHING * self._vocabulary
        return sum(math.log((counts[gram] + SMOOTHING) / total) for gram in grams) / len(ORDERS)
