"""Which part of a model has how many parameters: embedding, attention, feed-forward, norms, output ..."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor, nn

from weft.models.classifier import LabelHead
from weft.models.model_part import Part
from weft.models.qa import QAHead
from weft.nn.attention import FeedForward, PrunedAttention
from weft.nn.bridge import ProjectionBridge
from weft.nn.crf import CRF, LinearTagHead
from weft.nn.cross_attention import AttentionalOutput, CrossAttention, SourceAttention
from weft.nn.lm_head import LMHead
from weft.nn.mixers import MIXERS
from weft.nn.pointer_generator import PointerGeneratorOutput
from weft.nn.pooling import AttentionPooling
from weft.nn.positions import LearnedPositions, RelativePositions
from weft.nn.skip_connections import Dense, Highway

# a weight belongs to the innermost of these, or of mixers, that holds it; an embedding alone is below them all, for positions
# hold one
PARTS: dict[object, str] = {
    LearnedPositions: "positions",
    RelativePositions: "positions",
    PrunedAttention: "attention",
    **dict.fromkeys((CrossAttention, SourceAttention, AttentionalOutput), "cross-attention"),
    FeedForward: "feed-forward",
    **dict.fromkeys((nn.LayerNorm, nn.RMSNorm), "norms"),
    **dict.fromkeys((Highway, Dense), "connections"),
    ProjectionBridge: "bridge",
    AttentionPooling: "pooling",
    PointerGeneratorOutput: "copying",
    **dict.fromkeys((LMHead, LabelHead, QAHead, LinearTagHead, CRF), "output"),
}
# what no class tells, by the attribute that holds it: the map under a masked model's output, what joins or narrows vectors
NAMED = {
    "transform": "output",
    "final_norm": "connections",
    **dict.fromkeys(("input_proj", "embedding", "segments"), "embedding"),
}
SIDES = ("encoder", "decoder")
SPELLING = "char_encoder"


def _ancestors(name: str) -> Iterator[str]:
    """The modules that hold a weight, innermost first."""
    while "." in name:
        name = name.rpartition(".")[0]
        yield name


def part_names() -> dict[object, str]:
    """What the weights of a class are counted as; the rows of mixers say it for theirs."""
    rows = MIXERS.values()
    return {**{row.make: row.part for row in rows}, **{row.around: row.part for row in rows}, **PARTS}


def _part(name: str, modules: dict[str, nn.Module], known: Mapping[object, str]) -> str:
    for place in _ancestors(name):
        if (found := known.get(type(modules[place]))) is not None:
            return found
    steps = reversed(name.split("."))
    return next((NAMED[step] for step in steps if step in NAMED), "other")


def _side(name: str, *, two: bool) -> str:
    steps = name.split(".")
    if SPELLING in steps:
        return SPELLING
    return steps[0] if two and steps[0] in SIDES else ""


def count_parameters(model: nn.Module) -> list[Part]:
    """The parts in the order they stand in the model; their sum is the number of its parameters, for weights that two parts
    share are counted once, where they come first."""
    modules = dict(model.named_modules(remove_duplicate=False))
    two = all(side in modules for side in SIDES)
    known, owners = part_names(), dict[Tensor, list[tuple[str, str]]]()
    for name, weight in model.named_parameters(remove_duplicate=False):
        owners.setdefault(weight, []).append((_side(name, two=two), _part(name, modules, known)))
    counts, tied = dict[tuple[str, str], int](), dict[tuple[str, str], list[str]]()
    for tensor, (first, *others) in owners.items():
        counts[first] = counts.get(first, 0) + tensor.numel()
        tied.setdefault(first, []).extend(Part(*other, 0).title for other in others)
    return [Part(side, name, count, tuple(dict.fromkeys(tied[side, name]))) for (side, name), count in counts.items()]
