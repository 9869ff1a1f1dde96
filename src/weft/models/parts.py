"""Parameter counts by part of a model: embedding, attention, feed-forward, norms, output and so on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor, nn

from weft.models.classifier import LabelHead
from weft.models.model_part import Part
from weft.models.qa import QAHead
from weft.models.reward import RewardHead
from weft.nn.attention import FeedForward, PrunedAttention
from weft.nn.bridge import ProjectionBridge
from weft.nn.conformer import ConvModule
from weft.nn.crf import CRF, LinearTagHead
from weft.nn.cross_attention import AttentionalOutput, CrossAttention, SourceAttention
from weft.nn.experts import MixtureOfExperts, Router
from weft.nn.lm_head import LMHead
from weft.nn.mixers import MIXERS
from weft.nn.pointer_generator import PointerGeneratorOutput
from weft.nn.pooling import AttentionPooling
from weft.nn.positions import LearnedPositions, RelativeBias, RelativePositions
from weft.nn.skip_connections import Dense, Highway
from weft.nn.speech_front import SpeechFront
from weft.nn.vision import FeatureFront, VisionFront

# A parameter belongs to the innermost of these modules, or of the mixers, that contains it. nn.Embedding is not listed here,
# because learned positions contain one.
PARTS: dict[object, str] = {
    LearnedPositions: "positions",
    RelativePositions: "positions",
    RelativeBias: "positions",
    PrunedAttention: "attention",
    **dict.fromkeys((CrossAttention, SourceAttention, AttentionalOutput), "cross-attention"),
    FeedForward: "feed-forward",
    Router: "router",
    MixtureOfExperts: "experts",
    ConvModule: "convolution",
    SpeechFront: "front end",
    **dict.fromkeys((nn.LayerNorm, nn.RMSNorm), "norms"),
    **dict.fromkeys((Highway, Dense), "connections"),
    ProjectionBridge: "bridge",
    **dict.fromkeys((VisionFront, FeatureFront), "front end"),
    AttentionPooling: "pooling",
    PointerGeneratorOutput: "copying",
    **dict.fromkeys((LMHead, LabelHead, QAHead, RewardHead, LinearTagHead, CRF), "output"),
}
# parts that no class identifies, by attribute name
PARTS_BY_ATTRIBUTE = {
    "transform": "output",
    "value_head": "output",
    "final_norm": "connections",
    "out_proj": "connections",
    **dict.fromkeys(("input_proj", "embedding", "segments"), "embedding"),
}
SIDES = ("encoder", "decoder")
CHAR_ENCODER = "char_encoder"


def _ancestors(name: str) -> Iterator[str]:
    """The modules that contain a parameter, innermost first."""
    while "." in name:
        name = name.rpartition(".")[0]
        yield name


def part_names() -> dict[object, str]:
    """Part by class, including the mixers."""
    rows = MIXERS.values()
    mixers: dict[object, str] = {factory: row.component for row in rows for factory in (row.factory, row.bidirectional_factory)}
    return {**mixers, **PARTS}


def _part(name: str, modules: dict[str, nn.Module], parts_by_class: Mapping[object, str]) -> str:
    for ancestor in _ancestors(name):
        if (part := parts_by_class.get(type(modules[ancestor]))) is not None:
            return part
    attributes = reversed(name.split("."))
    return next((PARTS_BY_ATTRIBUTE[attribute] for attribute in attributes if attribute in PARTS_BY_ATTRIBUTE), "other")


def _side(name: str, *, is_seq2seq: bool) -> str:
    names = name.split(".")
    if CHAR_ENCODER in names:
        return CHAR_ENCODER
    return names[0] if is_seq2seq and names[0] in SIDES else ""


def count_parameters(model: nn.Module) -> list[Part]:
    """The parts in model order. They sum to the number of parameters: shared weights are counted once, in the first part."""
    modules = dict(model.named_modules(remove_duplicate=False))
    is_seq2seq = all(side in modules for side in SIDES)
    parts_by_class, owners = part_names(), dict[Tensor, list[tuple[str, str]]]()
    for name, weight in model.named_parameters(remove_duplicate=False):
        owners.setdefault(weight, []).append((_side(name, is_seq2seq=is_seq2seq), _part(name, modules, parts_by_class)))
    counts, tied = dict[tuple[str, str], int](), dict[tuple[str, str], list[str]]()
    for tensor, (first, *others) in owners.items():
        counts[first] = counts.get(first, 0) + tensor.numel()
        tied.setdefault(first, []).extend(Part(*other, 0).title for other in others if other != first)
    return [Part(side, name, count, tuple(dict.fromkeys(tied[side, name]))) for (side, name), count in counts.items()]
