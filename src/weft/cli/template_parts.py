"""What the run files of all tasks have in common."""

from __future__ import annotations

from collections.abc import Mapping

BUDGETS = ("steps", "tokens", "epochs", "minutes")
TOP = """\
# A weft run file: everything about one run that has an influence on its numbers.
# Options behind a # show their default: take the # away to change one. All but task, data.train and model.kind may go.
#
"""
TRAIN = """
[train]
{budget:<35}# the budget; or one of {others}
# batch_tokens = {batch_tokens:<18}# tokens in each step
# accumulate = 1                   # compute a batch in so many parts: saves memory, changes nothing
# optimizer = {optimizer:<21}# adamw, muon (for the matrices; adamw beside it), sgd
# lr = {lr:<28}# the highest learning rate
{muon}# beta2 = {beta2:<25}# how long adamw remembers the size of gradients
# weight_decay = {weight_decay:<18}# pull of the weights towards 0
{smoothing}# schedule = {schedule:<22}# how lr falls: constant, linear, cosine, inverse-square-root, warmup-stable-decay
# warmup = {warmup:<24}# share of the budget in which lr rises first
# clip = 1.0                       # the largest norm of a gradient, or "none"
# validations = 10                 # how often in the run the validation data is scored and a checkpoint written
{samples}{monitor}# patience = "none"                # stop after so many validations without a better score
# device = "auto"                  # cpu, cuda; auto: the GPU if there is one
# precision = "auto"               # float32, bfloat16; auto: bfloat16 on a GPU
# compile = "auto"                 # true, false; auto: on a GPU, where it helps
# tensorboard = false              # true: also write a log that TensorBoard shows
"""
STACK = """
[model]
kind = "{kind}"{pad}# {about}
# layers = {layers:<24}# one upon the other
# width = {width:<25}# numbers in the state of each position
"""
ATTENTION = """\
# heads = 8                        # one for every 32 of the width, unless given; or one number a layer
# positions = {positions:<21}# none, sinusoidal, learned, relative, alibi, rotary
# feed_forward = 1024              # hidden units after each attention: 4 times the width, unless given
# activation = {activation:<20}# gelu, gelu-tanh, relu, squared-relu, gated
# qk_norm = {qk_norm:<23}# queries and keys are normalised: steadier at high rates
"""


NONLINEARITY = """\
# nonlinearity = "tanh"            # f in h = f(W h + U x + b): tanh, relu, sigmoid
"""


def quoted(word: str) -> str:
    """As TOML writes it."""
    return f'"{word}"'


def stack(name: str, about: str, layers: int, width: int) -> str:
    """The beginning of [model]."""
    return STACK.format(kind=name, pad=" " * (26 - len(name)), about=about, layers=layers, width=width)


def train(values: Mapping[str, str]) -> str:
    """[train]; `budget` is `steps = 2000`, or another of the four."""
    words = {name: quoted(text) if name in ("optimizer", "schedule") else text for name, text in values.items()}
    others = ", ".join(f"{name} = ..." for name in BUDGETS if not values["budget"].startswith(name))
    return TRAIN.format(others=others, **{"samples": "", **words})
