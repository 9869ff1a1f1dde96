"""Export encoder-decoders and language models to CTranslate2, and compare the exported model with the run.

Only attention models can be exported; `problems` lists the option values of a run that CTranslate2 has no equivalent of.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from weft import files
from weft.errors import ModelError, ResourceError, UsageError, unknown_name
from weft.interop.ctranslate2_options import problems, translates
from weft.interop.export_record import RECORD, ExportCheck, ExportOptions, check_output_dir, write_export_record
from weft.runs.atomic_dir import staged_directory
from weft.runs.run import AnyRun
from weft.text.tokenizer_pair import TokenizerPair, save_tokenizer_pair
from weft.text.tokenizers import Tokenizer

if TYPE_CHECKING:
    from ctranslate2.specs import TransformerDecoderModelSpec, TransformerSpec

__all__ = ["check_package", "export", "problems"]
NAME = "ctranslate2"
# the largest difference of a log-probability, relative to its absolute value if that is more than 1. Integers are judged
# by the scores of a trained model: single tokens can differ by much
TOLERANCES = {
    "float32": 1e-4,
    "float16": 0.05,
    "bfloat16": 0.3,
    "int16": 0.2,
    "int8": 1.0,
    "int8_float32": 1.0,
    "int8_float16": 1.0,
    "int8_bfloat16": 1.0,
}
MAX_PREFIX = 16  # tokens of a prefix that the tables of positions have room for


class Vocabularies(NamedTuple):
    """The tokens by ID, as CTranslate2 names them."""

    source: list[str]
    target: list[str]


def check_package() -> None:
    """Refuse to work without the package."""
    try:
        import ctranslate2  # noqa: F401
    except ImportError:
        raise ResourceError(NAME, "is not installed", "run pip install 'weft[ctranslate2]'") from None


def check_quantization(name: str) -> None:
    if name not in TOLERANCES:
        raise UsageError("quantization", *unknown_name("quantization", name, tuple(TOLERANCES)))


def check_run(run: AnyRun, where: str = "export") -> None:
    """Refuse a run that CTranslate2 cannot compute."""
    if found := problems(run.config):
        raise UsageError(where, f"CTranslate2 cannot compute this run: {'; '.join(found)}")
    if len(run.members) > 1 or run.lm is not None or run.cache is not None:
        raise UsageError(where, "CTranslate2 has no ensembles, no shallow fusion and no neural caches", "use one run alone")


# ---- the model


def tokenizers_of(run: AnyRun) -> TokenizerPair:
    """The tokenizers of sources and targets, with noise tokens; a language model has one tokenizer."""
    if translates(run.config):
        pair: TokenizerPair = run.predictor.tokenizer
        return pair
    return TokenizerPair(run.vocabulary, run.vocabulary)


def _tokens(tokenizer: Tokenizer) -> list[str]:
    """The vocabulary by ID. A noise token whose name is an ordinary token gets another one: names are unique."""
    names = dict[str, None]()
    for token_id in range(tokenizer.vocab_size):
        name = tokenizer.id_to_token(token_id)
        names[name if name not in names else f"{name} {token_id}"] = None
    return list(names)


def vocabularies_of(run: AnyRun) -> Vocabularies:
    pair = tokenizers_of(run)
    source = _tokens(pair.source)
    return Vocabularies(source, source if pair.is_shared else _tokens(pair.target))


def num_positions(run: AnyRun) -> tuple[int, int]:
    """The rows of tables of positions, of the source and of the target: room for the longest source, and for the default
    length of its output with a prefix. Twice the context of a language model."""
    from weft.decode.predict import default_max_new_tokens

    if translates(run.config):
        longest: int = run.config.data.max_length
        return longest, default_max_new_tokens(longest) + MAX_PREFIX
    return 0, 2 * run.model.context_length


def _spec(run: AnyRun, names: Vocabularies) -> TransformerSpec | TransformerDecoderModelSpec:
    from weft.interop.ctranslate2_weights import language_model_spec, seq2seq_spec
    from weft.nn.lora import merge_adapters

    # copies: CTranslate2 quantizes arrays in place
    tensors = {name: tensor.detach().cpu().clone() for name, tensor in merge_adapters(run.model.state_dict()).items()}
    positions, tokenizer = num_positions(run), tokenizers_of(run).target
    if translates(run.config):
        spec = seq2seq_spec(tensors, run.config.model, positions, run.config.data.max_length)
        spec.register_source_vocabulary(names.source)
        spec.register_target_vocabulary(names.target)
        spec.config.decoder_start_token = names.target[tokenizer.start_tokens.target[0]]
    else:
        spec = language_model_spec(tensors, run.config.model, positions[1], run.model.context_length)
        spec.register_vocabulary(names.target)
    for name, token_id in (("unk", tokenizer.unk_id), ("bos", tokenizer.bos_id), ("eos", tokenizer.eos_id)):
        setattr(spec.config, f"{name}_token", names.target[token_id])
    return spec


# ---- the check


def open_model(run: AnyRun, directory: Path, quantization: str, *, device: str, threads: int) -> Any:
    """A `ctranslate2.Translator` or `Generator`. A type that the processor does not compute with is computed as float32."""
    import ctranslate2

    supported = ctranslate2.get_supported_compute_types(device)
    compute_type = quantization if quantization in supported else "float32"
    model_class = ctranslate2.Translator if translates(run.config) else ctranslate2.Generator
    try:
        return model_class(str(directory), device, compute_type=compute_type, intra_threads=threads)
    except (RuntimeError, ValueError) as error:
        raise ModelError(directory, f"CTranslate2 cannot load it: {error}") from None


def _check(run: AnyRun, directory: Path, quantization: str, names: Vocabularies) -> ExportCheck:
    """Compare log-probabilities under both programs. The export fails if they differ."""
    import torch

    from weft.interop import ctranslate2_check as comparison

    model = open_model(run, directory, quantization, device="cpu", threads=torch.get_num_threads())
    compare = comparison.compare_translator if translates(run.config) else comparison.compare_generator
    difference, relative, shapes = compare(run, model, names.source, names.target)
    if not relative <= TOLERANCES[quantization]:  # also if it is NaN
        problem = f"log-probabilities of CTranslate2 differ by up to {difference:.2g} from those of weft"
        raise ModelError(run.path, f"{problem} (limit for {quantization}: {TOLERANCES[quantization]:g}); nothing was written")
    return ExportCheck(difference, shapes)


# ---- the call in export.json


def _literal(names: Sequence[str], ids: Sequence[int]) -> str:
    return ", ".join(repr(names[token_id]) for token_id in ids)


LOAD = """\
import ctranslate2, tokenizers
source, target = (tokenizers.Tokenizer.from_file(directory + "/" + name) for name in {tokenizer_files!r})
source.encode_special_tokens = True
"""
TRANSLATE = """\
tokens = [{start}*source.encode(text, add_special_tokens=False).tokens, {eos!r}]
translator = ctranslate2.Translator(directory)
result, = translator.translate_batch(
    [tokens],{prefix} beam_size=5, patience=2, length_penalty=1, min_decoding_length=0,
    max_decoding_length={limit}, max_input_length=0, return_end_token=True, return_scores=True,
)
ids = [target.token_to_id(token) for token in result.hypotheses[0]]
output, score = target.decode([i for i in ids if i > 2], skip_special_tokens=False), result.scores[0]
"""
GENERATE = """\
tokens = [{start}*source.encode(text, add_special_tokens=False).tokens]{comment}
generator = ctranslate2.Generator(directory)
result, = generator.generate_batch(
    [tokens], beam_size=1, max_length={limit}, include_prompt_in_result=False, return_end_token=True, return_scores=True
)
output, score = target.decode([i for i in result.sequences_ids[0] if i > 2], skip_special_tokens=False), result.scores[0]
"""


def _call(run: AnyRun, names: Vocabularies, tokenizer_files: Sequence[str]) -> str:
    """Python code that computes the `output` of weft for a `text` from `directory`."""
    pair, decode = tokenizers_of(run), run.spec.decode
    max_positions = run.model.max_positions
    load = LOAD.format(tokenizer_files=(tokenizer_files[0], tokenizer_files[-1]))
    if translates(run.config):
        start, forced = pair.source.start_tokens.source, pair.target.start_tokens.target[1:]
        limit = "2 * -(-len(tokens) // 16) * 16 + 32" + (f" + {len(forced)}" if forced else "")
        return load + TRANSLATE.format(
            limit=limit if max_positions is None else f"min({limit}, {max_positions})",
            start=f"{_literal(names.source, start)}, " if start else "",
            eos=names.source[pair.source.eos_id],
            prefix=f" target_prefix=[[{_literal(names.target, forced)}]]," if forced else "",
        )
    is_continuation = decode is not None and decode.echoes_prompt
    before = [pair.target.bos_id] if decode is None or not is_continuation else decode.prompt_ids(run, "")
    comment = "" if is_continuation else "  # a text in the template of the run"
    limit = "100" if max_positions is None else f"min(100, {max_positions + 1} - len(tokens))"
    return load + GENERATE.format(limit=limit, start=f"{_literal(names.target, before)}, ", comment=comment)


# ---- all


def _notes(run: AnyRun) -> list[str]:
    if translates(run.config):
        return []
    length = run.model.context_length
    return [f"CTranslate2 reads a prompt of more than {length} tokens without the context limit of {length}: shorten it"]


def write_model(run: AnyRun, directory: Path, quantization: str) -> ExportCheck:
    """Write a model, its tokenizers and export.json into a directory, after it has been compared with the run."""
    check_package()
    check_run(run)
    names, pair = vocabularies_of(run), tokenizers_of(run)
    spec = _spec(run, names)
    spec.validate()
    spec.optimize(quantization)
    with files.wrap_os_errors(directory):
        spec.save(str(directory))
        for path in directory.iterdir():  # CTranslate2 does not wait until they are on the disk
            with path.open("rb") as file:
                os.fsync(file.fileno())
    save_tokenizer_pair(pair, directory)
    check = _check(run, directory, quantization, names)
    tokenizer_files = sorted(path.name for path in directory.glob("tokenizer*.json"))
    call = _call(run, names, tokenizer_files)
    write_export_record(directory, run=run.path, name=NAME, check=check, call=call, packages=[NAME])
    return check


def export(run: AnyRun, output_dir: Path, options: ExportOptions) -> list[str]:
    """Write a model for `ctranslate2.Translator` or `ctranslate2.Generator`, and export.json with the call that gives the
    outputs of weft. Returns notes on differences."""
    from weft.interop.model_card import write_card

    quantization = options.quantization or "float32"
    check_quantization(quantization)
    check_output_dir(output_dir)
    check_package()
    check_run(run)
    with staged_directory(output_dir, last=RECORD) as staging_dir:
        write_model(run, staging_dir, quantization)
        write_card(run, NAME, staging_dir, options, notes := _notes(run))
    return notes
