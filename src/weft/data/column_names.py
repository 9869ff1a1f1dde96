"""Typical column names of data sets, by the role of the column."""

from __future__ import annotations

import re

# fmt: off
NAMES: dict[str, frozenset[str]] = {
    "label": frozenset((
        "label", "labels", "class", "classes", "category", "categories", "sentiment", "polarity", "topic", "topics", "intent",
        "emotion", "emotions", "tag", "tags", "rating", "stars", "genre", "genres", "gold", "y", "v1", "spam", "toxic",
        "stance", "verdict", "duplicate", "entailment", "language", "lang", "gender", "annotation", "target", "score", "type",
    )),
    "text": frozenset((
        "text", "texts", "sentence", "review", "reviews", "tweet", "comment", "message", "content", "body", "document", "doc",
        "description", "utterance", "headline", "title", "post", "abstract", "email", "sms", "query", "question", "v2", "x",
        "name", "word", "statement", "passage", "article", "paragraph", "review_body", "review_text", "reviewtext", "input",
    )),
    "source": frozenset((
        "source", "src", "input", "inputs", "instruction", "prompt", "question", "word", "grapheme", "graphemes", "orthography",
        "document", "article", "original", "lemma", "english", "query", "source_text", "input_text", "dialogue", "text",
    )),
    "target": frozenset((
        "target", "tgt", "trg", "output", "outputs", "response", "completion", "answer", "summary", "highlights", "translation",
        "phonemes", "phones", "pronunciation", "pron", "ipa", "transcription", "form", "simplified", "corrected", "paraphrase",
        "target_text", "output_text", "reply",
    )),
    "question": frozenset(("question", "query", "q", "question_text")),
    "passage": frozenset(("passage", "context", "paragraph", "document", "article", "text", "passage_text", "story")),
    "answer": frozenset(("answer", "answers", "answer_text", "answers.text", "answer.text")),
    "answer_start": frozenset(("answer_start", "answers.answer_start", "answer.answer_start", "start", "answer_starts")),
}
LANGUAGES = frozenset((
    "en", "de", "fr", "es", "it", "pt", "nl", "ru", "pl", "cs", "zh", "ja", "ko", "ar", "hi", "tr", "fi", "sv", "da", "no",
    "hu",
    "ro", "el", "uk", "bg", "eng", "deu", "ger", "fra", "fre", "spa", "ita", "por", "rus", "zho", "jpn", "english", "german",
    "french", "spanish", "italian", "portuguese", "dutch", "russian", "polish", "czech", "chinese", "japanese", "korean",
    "arabic", "hindi", "turkish", "finnish", "swedish", "danish", "norwegian", "hungarian", "romanian", "greek", "ukrainian",
))
PAIRS = (  # of texts that are classified together
    ("premise", "hypothesis"), ("claim", "evidence"), ("text_a", "text_b"), ("sentence_a", "sentence_b"),
    ("sentence1", "sentence2"), ("question1", "question2"), ("text1", "text2"),
)
# columns of data that no task reads, and what they contain
UNSUPPORTED = {
    frozenset(("chosen", "rejected")): "pairs of a preferred and a rejected text",
    frozenset(("sentence_good", "sentence_bad")): "minimal pairs of sentences",
    frozenset(("messages",)): "conversations",
    frozenset(("conversations",)): "conversations",
}
# fmt: on
_OTHER = frozenset(("id", "idx", "index", "date", "time", "timestamp", "url", "user", "author", "split", "source", "number"))
KNOWN = frozenset().union(*NAMES.values(), LANGUAGES, _OTHER, *PAIRS)


def normalized(name: str | int) -> str:
    """'ReviewText' -> 'review_text'."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", str(name).strip())
    return re.sub(r"[\s_-]+", "_", words).lower()


def has_role(name: str | int, role: str) -> bool:
    """Whether a column name, or for names of several words its last word, is typical of a role."""
    words = normalized(name)
    return words in NAMES[role] or words.rpartition("_")[2] in NAMES[role]


def is_language(name: str | int) -> bool:
    """Whether a column, or the key of a nested object, has the name of a language."""
    return normalized(name).rpartition(".")[2] in LANGUAGES
