"""How to use an exported model: the code of a model card, which runs in the exported directory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from weft.models.config import LanguageModelConfig
from weft.models.encoder_config import ClassifierConfig, MaskedLMConfig, QAConfig, TaggerConfig
from weft.models.seq2seq_config import Seq2SeqConfig
from weft.runs.run import AnyRun


class Usage(NamedTuple):
    """A kind of model: its tag on Hugging Face, and code for transformers."""

    tag: str
    code: str


_LOAD = """\
from transformers import AutoTokenizer, {auto}

tokenizer = AutoTokenizer.from_pretrained(".")
model = {auto}.from_pretrained(".")
"""


def _code(auto: str, use: str) -> str:
    return _LOAD.format(auto=auto) + use


USAGE: Mapping[type, Usage] = {
    LanguageModelConfig: Usage(
        "text-generation",
        _code(
            "AutoModelForCausalLM",
            'batch = tokenizer("A prompt", return_tensors="pt")\n'
            "output = model.generate(**batch, max_new_tokens=20, do_sample=False)\n"
            "print(tokenizer.decode(output[0], skip_special_tokens=True))\n",
        ),
    ),
    Seq2SeqConfig: Usage(
        "text2text-generation",
        _code(
            "AutoModelForSeq2SeqLM",
            'batch = tokenizer("A source text", return_tensors="pt")\n'
            "output = model.generate(**batch, num_beams=5, early_stopping='never')\n"
            "print(tokenizer.decode(output[0], skip_special_tokens=True))\n",
        ),
    ),
    MaskedLMConfig: Usage(
        "fill-mask",
        _code(
            "AutoModel",
            'batch = tokenizer("A text", return_tensors="pt")\nprint(model(**batch).last_hidden_state.shape)\n',
        ),
    ),
    ClassifierConfig: Usage(
        "text-classification",
        _code(
            "AutoModelForSequenceClassification",
            'batch = tokenizer("A text", return_tensors="pt")\n'
            "print(model.config.id2label[int(model(**batch).logits.argmax())])\n",
        ),
    ),
    TaggerConfig: Usage(
        "token-classification",
        _code(
            "AutoModelForTokenClassification",
            "# the first token of each word has its tag\n"
            'batch = tokenizer(["A", "sentence"], is_split_into_words=True, return_tensors="pt")\n'
            "tags = model(**batch).logits[0].argmax(-1).tolist()\n"
            "words = batch.word_ids()\n"
            "print([model.config.id2label[tags[words.index(word)]] for word in range(2)])\n",
        ),
    ),
    QAConfig: Usage(
        "question-answering",
        _code(
            "AutoModelForQuestionAnswering",
            'batch = tokenizer("A question?", "A passage with the answer.", return_tensors="pt")\n'
            "output = model(**batch)\n"
            "print(int(output.start_logits.argmax()), int(output.end_logits.argmax()))  # 0: no answer\n",
        ),
    ),
}
SENTENCES = """\
from sentence_transformers import SentenceTransformer

model = SentenceTransformer(".")
print(model.encode(["A text", "Another text"]).shape)
"""


def _usage_of(run: AnyRun) -> Usage | None:
    return next((USAGE[kind] for kind in type(run.config.model).__mro__ if kind in USAGE), None)


def pipeline_tag(run: AnyRun, name: str) -> str | None:
    """The tag of the task on Hugging Face."""
    found = _usage_of(run)
    return "sentence-similarity" if name == "sentence-transformers" else None if found is None else found.tag


def usage(run: AnyRun, name: str, call: str) -> list[str]:
    """Markdown with the code that uses the model; for formats without one, `call`, which gives the outputs of weft."""
    found = _usage_of(run)
    if name == "sentence-transformers":
        code, language = SENTENCES, "python"
    elif name == "hf" and found is not None:
        code, language = found.code, "python"
    else:
        code, language = f"{call}\n", "text"
    return [f"```{language}", code.rstrip("\n"), "```"]
