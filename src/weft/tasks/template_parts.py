"""What the templates of several tasks have in common: parts of run files."""

from __future__ import annotations

from collections.abc import Mapping

BUDGETS = ("max_steps", "max_tokens", "max_epochs", "max_minutes")
TOP = """\
# A weft run file: everything about one run that has an influence on its numbers.
# Options behind a # show their default: take the # away to change one. All but task, data.train and model.arch may go.
#
"""
TRAIN = """
[train]
{budget:<35}# the budget; or one of {others}
# batch_tokens = {batch_tokens:<18}# tokens in each step
# micro_batches = 1                   # compute a batch in so many parts: saves memory, changes nothing
# optimizer = {optimizer:<21}# adamw, muon (for the matrices; adamw beside it), sgd
# lr = {lr:<28}# the highest learning rate
{muon}# beta2 = {beta2:<25}# how long adamw remembers the size of gradients
# weight_decay = {weight_decay:<18}# pull of the weights towards 0
{smoothing}# schedule = {schedule:<22}# how lr falls: constant, linear, cosine, inverse-square-root, warmup-stable-decay
# warmup_ratio = {warmup:<24}# share of the budget in which lr rises first
# max_grad_norm = 1.0                       # the largest norm of a gradient, or "none"
# num_validations = 10                 # how often in the run the validation data is scored and a checkpoint written
{samples}{monitor}# patience = "none"                # stop after so many validations without a better score
# device = "auto"                  # cpu, cuda; auto: the GPU if there is one
# precision = "auto"               # float32, bfloat16; auto: bfloat16 on a GPU
# compile = "auto"                 # true, false; auto: on a GPU, where it helps
# tensorboard = false              # true: also write a log that TensorBoard shows
"""
STACK = """
[model]
arch = "{kind}"{pad}# {about}
# num_layers = {layers:<24}# one upon the other
# hidden_size = {width:<25}# numbers in the state of each position
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
MUON = """\
# matrix_lr = 0.02                 # the rate of the matrices
# momentum = 0.95                  # of the matrices
"""

# ---- encoders: models that label texts, tag words, fill masks, or find answers

COMMANDS = """\
#   weft check run.toml                   look at the data before it is trained on
#   weft train run.toml                   train it (Ctrl-C stops and saves; the same command resumes)
#   weft evaluate runs/run                scores on the test data
"""
STACKED = """\
# two_way = true                   # reads from both ends
# dropout = {dropout:<23}# the smaller the data, the more, up to 0.5
                                   # embedding_dropout = 0.1: of the embeddings alone; as dropout, unless given
                                   # word_dropout = 0.1: share of tokens that training reads as <unk>
{read}# embedding_norm = {embedding_norm:<16}# embeddings are normalised before the first layer, as in BERT
# connection = {connection:<20}# between layers: plain, residual, post-norm, highway, dense
# norm = {norm:<26}# none, layer, rms
"""
READ = """\
                                   # embedding = 300: the size of a token's vector; as width, unless given
"""
CONTEXT = """\
# context = 3                      # tokens that a position sees: itself, in the middle, and those on either side
"""
AVERAGE = """\
# average = 0.99                   # what is kept is an average of the weights, with this decay; or "none"
"""
ROTARY = ATTENTION.format(positions='"rotary"', activation='"gelu"', qk_norm="false")
LEARNED = ATTENTION.format(positions='"learned"', activation='"gelu"', qk_norm="false")
RECIPE = {
    "optimizer": "adamw", "adam_beta2": "0.99", "weight_decay": "0.01", "schedule": "cosine", "warmup": "0.05", "muon": "",
}  # fmt: skip
PRETRAINED = "Devlin et al. 2019: give --init-from RUN"
FINE_TUNED = {
    **RECIPE, "budget": "epochs = 3.0", "batch_tokens": "8192", "lr": "5e-5", "smoothing": "", "schedule": "linear",
    "warmup": "0.1",
}  # fmt: skip


def quoted(word: str) -> str:
    """As TOML writes it."""
    return f'"{word}"'


def stack(name: str, about: str, num_layers: int, hidden_size: int) -> str:
    """The beginning of [model]."""
    return STACK.format(kind=name, pad=" " * (26 - len(name)), about=about, layers=num_layers, width=hidden_size)


def train(values: Mapping[str, str]) -> str:
    """[train]; `budget` is `steps = 2000`, or another of the four."""
    words = {name: quoted(text) if name in ("optimizer", "lr_schedule") else text for name, text in values.items()}
    others = ", ".join(f"{name} = ..." for name in BUDGETS if not values["budget"].startswith(name))
    return TRAIN.format(others=others, **{"samples": "", **words})
