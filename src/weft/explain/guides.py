"""How to read the figures of each view, in one or two sentences. The HTML page shows them above the figures."""

from __future__ import annotations

ATTENTION = (
    "Each row is the token that attends, each column a token that is attended to; the darker a cell, the larger the weight, "
    "and each row sums to 1. Attention weights show where information may flow, not what caused the output."
)
ROLLOUT = (
    "Each row is a position of the output, each column an input token; the darker a cell, the larger the fraction of the row "
    "that comes from that token when attention is followed through all layers."
)
ATTRIBUTION = (
    "Orange tokens raised the probability of the output, blue tokens lowered it; the stronger the color, the larger the "
    "contribution, in nats of log-probability."
)
SURPRISAL = (
    "The darker a token, the less the model expected it. Surprisal is -log2 of its probability: 1 bit for a probability of "
    "1/2, 10 bits for about 1/1000."
)
DISTRIBUTION = (
    "Each group is one step of the output, each bar a candidate token; its length is the probability before and "
    "after temperature and filters."
)
COUNTS = (
    "Each group is one context, each bar a token that may follow it: how often it did in the training text, and the "
    "probability that the model assigns to it after smoothing."
)
SEARCH = (
    "Each column is one step of beam search, each box a hypothesis with its last token and its score; lines lead to the "
    "hypothesis it extends. The green path is the output; the legend gives the reason why the others ended."
)
LENS = (
    "Each column is a position, each row a layer, with the token that the model would predict next if that layer were the "
    "last; the darker, the more probable, framed if it is correct. Where predictions stop changing, the layers above add "
    "little."
)
UNITS = (
    "Each token is colored by the activation of one unit while it is read: orange above 0, blue below. A unit that tracks a "
    "feature of the text has one color wherever the feature holds."
)
EXPERTS = (
    "Each column is a token, each row a layer, with the numbers of the experts that it uses, the first by weight in its color. "
    "The second table has the fraction of the work that each expert does: equal fractions mean that the load is balanced."
)
GRADIENTS = (
    "The height is the norm of the gradient of the loss at each distance or layer, on a logarithmic axis. A line that falls "
    "steadily is a vanishing gradient: the model learns little from inputs that far back."
)
POSITIONS = (
    "Rows are positions, columns are dimensions of their encoding. The curves show how the similarity of two "
    "positions depends on their distance."
)
GEOMETRY = (
    "The curves show how similar word vectors are in each layer. Each point is one occurrence of a word, projected on the "
    "first two principal components: points that are close have similar vectors."
)
LAYERS = "Each cell compares two layers by linear CKA on the same words: 1 (dark) for the same geometry, 0 for unrelated ones."
HEADS_DIVERGENCE = (
    "Each cell compares two attention heads by the divergence of their weights, in bits: 0 for equal weights, 1 "
    "for heads that never attend to the same tokens."
)
HEADS_IMPORTANCE = (
    "Each cell is one head: orange if the loss rises without it, blue if it falls. The curve is the loss as the least "
    "important heads are removed one after another; where it rises, the model needs the remaining heads."
)
MODELS = (
    "Each cell compares a layer of one model with a layer of another by linear CKA on the same words: 1 (dark) for "
    "the same geometry, 0 for unrelated ones."
)
