"""Reference implementation of n-gram smoothing from the published formulas: slow, on dictionaries, independent of weft.

Chen and Goodman 1998 (equations 17, 25, 26); Heafield, Pouzyrevsky, Clark and Koehn 2013 for adjusted counts, <s> and
pruning; Ney, Essen and Kneser 1994 for absolute discounting. Words are token IDs; 1 is <s>.
"""

from __future__ import annotations

from collections import Counter, defaultdict

BOS = 1


class NGramFormula:
    """P(word | context) estimated from lines of token IDs (EOS included), by recursion on the context."""

    def __init__(self, lines, *, order, size, prune=(), closed=False, delta=1.0):
        self.order, self.delta = order, delta
        self.count = Counter()
        for line in lines:
            ids = (BOS, *line)
            for end in range(1, len(ids)):
                for length in range(1, min(order, end + 1) + 1):
                    self.count[ids[end + 1 - length : end + 1]] += 1
        unigrams = {gram[0] for gram in self.count if len(gram) == 1}
        self.words = sorted(unigrams) if closed else [w for w in range(size) if w != BOS]
        thresholds = [*prune, *[prune[-1] if prune else 0] * (order - len(prune))]
        self.kept = {gram for gram, count in self.count.items() if count > thresholds[len(gram) - 1]}
        self.follow = defaultdict(list)  # the n-grams that extend a context, pruned or not
        for gram in self.count:
            self.follow[gram[:-1]].append(gram)
        before = Counter(gram[1:] for gram in self.count if len(gram) > 1)
        self.adjusted = {
            gram: count if len(gram) == order or gram[0] == BOS else before[gram] for gram, count in self.count.items()
        }

    def usable(self, context):
        return context in self.follow and (len(context) < 1 or context == (BOS,) or context in self.kept)

    def truncate(self, context):
        return tuple(context)[len(context) - self.order + 1 :] if len(context) >= self.order else tuple(context)


class KneserNey(NGramFormula):
    def __init__(self, lines, **options):
        super().__init__(lines, **options)
        self.discounts = {length: self.discount(length) for length in range(1, self.order + 1)}

    def discount(self, length):
        n = Counter(count for gram, count in self.adjusted.items() if len(gram) == length)
        if n[1] and n[2] and n[3]:
            y = n[1] / (n[1] + 2 * n[2])
            d = {j: j - (j + 1) * y * n[j + 1] / n[j] for j in (1, 2, 3)}
            if all(0 <= d[j] <= j for j in d):
                return d
        return {1: 0.5, 2: 1.0, 3: 1.5}

    def p(self, word, context):
        context = self.truncate(context)
        if context and not self.usable(context):
            return self.p(word, context[1:])
        grams = self.follow[context]
        d = self.discounts[len(context) + 1]
        total = sum(self.adjusted[gram] for gram in grams)
        discount_mass = sum(d[min(self.adjusted[g], 3)] if g in self.kept else self.adjusted[g] for g in grams)
        lower = self.p(word, context[1:]) if context else (word in self.words) / len(self.words)
        gram = (*context, word)
        discounted = self.adjusted[gram] - d[min(self.adjusted[gram], 3)] if gram in self.kept else 0.0
        return discounted / total + discount_mass / total * lower


class AddDelta(NGramFormula):
    def p(self, word, context):
        context = self.truncate(context)
        if word not in self.words:
            return 0.0
        if len(context) < self.order - 1 and BOS not in context[:1]:
            return 1 / len(self.words)
        grams = [gram for gram in self.follow.get(context, []) if gram in self.kept]
        count = self.count[(*context, word)] if (*context, word) in self.kept else 0
        total = sum(self.count[gram] for gram in grams)
        return (count + self.delta) / (total + self.delta * len(self.words))


class MaximumLikelihood(NGramFormula):
    def p(self, word, context):
        context = self.truncate(context)
        grams = [gram for gram in self.follow.get(context, []) if gram in self.kept]
        if context and not (grams and self.usable(context)):
            return self.p(word, context[1:])
        gram = (*context, word)
        return self.count[gram] / sum(self.count[g] for g in grams) if gram in self.kept else 0.0


class BackOff(NGramFormula):
    def discount(self, length):
        once, twice = (sum(m == k for g, m in self.count.items() if len(g) == length) for k in (1, 2))
        return once / (once + 2 * twice) if once and twice else 0.5

    def p(self, word, context):
        context = self.truncate(context)
        grams = [gram for gram in self.follow.get(context, []) if gram in self.kept]
        if context and not (grams and self.usable(context)):
            return self.p(word, context[1:])
        if word not in self.words:
            return 0.0
        d = self.discount(len(context) + 1) if len(grams) < len(self.words) else 0.0
        total = sum(self.count[gram] for gram in self.follow[context])
        explicit = {gram[-1]: (self.count[gram] - d) / total for gram in grams}
        if word in explicit:
            return explicit[word]
        backoff_mass = 1 - sum(explicit.values())
        if not context:
            return backoff_mass / (len(self.words) - len(explicit))
        return backoff_mass * self.p(word, context[1:]) / sum(self.p(w, context[1:]) for w in self.words if w not in explicit)


FORMULAS = {"kneser-ney": KneserNey, "add-delta": AddDelta, "mle": MaximumLikelihood, "backoff": BackOff}
