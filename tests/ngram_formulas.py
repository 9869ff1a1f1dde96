"""The published formulas of n-gram smoothing over dictionaries: slow, and written apart from what they check.

Chen and Goodman 1998 (equations 17, 25, 26); Heafield, Pouzyrevsky, Clark and Koehn 2013 for adjusted counts, <s> and
pruning; Ney, Essen and Kneser 1994 for absolute discounting. A word is an id; 1 is <s>.
"""

from __future__ import annotations

from collections import Counter, defaultdict

BEGIN = 1


class Formulas:
    """P(word | context) of lines of ids (end tokens included), by recursion on the context."""

    def __init__(self, lines, *, order, size, prune=(), closed=False, delta=1.0):
        self.order, self.delta = order, delta
        self.count = Counter()
        for line in lines:
            ids = (BEGIN, *line)
            for end in range(1, len(ids)):
                for length in range(1, min(order, end + 1) + 1):
                    self.count[ids[end + 1 - length : end + 1]] += 1
        seen = {gram[0] for gram in self.count if len(gram) == 1}
        self.words = sorted(seen) if closed else [w for w in range(size) if w != BEGIN]
        least = [*prune, *[prune[-1] if prune else 0] * (order - len(prune))]
        self.kept = {gram for gram, many in self.count.items() if many > least[len(gram) - 1]}
        self.follow = defaultdict(list)  # what follows a context, pruned or not
        for gram in self.count:
            self.follow[gram[:-1]].append(gram)
        before = Counter(gram[1:] for gram in self.count if len(gram) > 1)
        self.adjusted = {
            gram: many if len(gram) == order or gram[0] == BEGIN else before[gram] for gram, many in self.count.items()
        }

    def usable(self, context):
        return context in self.follow and (len(context) < 1 or context == (BEGIN,) or context in self.kept)

    def cut(self, context):
        return tuple(context)[len(context) - self.order + 1 :] if len(context) >= self.order else tuple(context)


class KneserNey(Formulas):
    def __init__(self, lines, **options):
        super().__init__(lines, **options)
        self.discounts = {length: self.discount(length) for length in range(1, self.order + 1)}

    def discount(self, length):
        n = Counter(many for gram, many in self.adjusted.items() if len(gram) == length)
        if n[1] and n[2] and n[3]:
            y = n[1] / (n[1] + 2 * n[2])
            d = {j: j - (j + 1) * y * n[j + 1] / n[j] for j in (1, 2, 3)}
            if all(0 <= d[j] <= j for j in d):
                return d
        return {1: 0.5, 2: 1.0, 3: 1.5}

    def p(self, word, context):
        context = self.cut(context)
        if context and not self.usable(context):
            return self.p(word, context[1:])
        grams = self.follow[context]
        d = self.discounts[len(context) + 1]
        everything = sum(self.adjusted[gram] for gram in grams)
        spare = sum(d[min(self.adjusted[g], 3)] if g in self.kept else self.adjusted[g] for g in grams)
        lower = self.p(word, context[1:]) if context else (word in self.words) / len(self.words)
        gram = (*context, word)
        own = self.adjusted[gram] - d[min(self.adjusted[gram], 3)] if gram in self.kept else 0.0
        return own / everything + spare / everything * lower


class AddDelta(Formulas):
    def p(self, word, context):
        context = self.cut(context)
        if word not in self.words:
            return 0.0
        if len(context) < self.order - 1 and BEGIN not in context[:1]:
            return 1 / len(self.words)
        grams = [gram for gram in self.follow.get(context, []) if gram in self.kept]
        mine = self.count[(*context, word)] if (*context, word) in self.kept else 0
        everything = sum(self.count[gram] for gram in grams)
        return (mine + self.delta) / (everything + self.delta * len(self.words))


class Likelihood(Formulas):
    def p(self, word, context):
        context = self.cut(context)
        grams = [gram for gram in self.follow.get(context, []) if gram in self.kept]
        if context and not (grams and self.usable(context)):
            return self.p(word, context[1:])
        gram = (*context, word)
        return self.count[gram] / sum(self.count[g] for g in grams) if gram in self.kept else 0.0


class BackOff(Formulas):
    def discount(self, length):
        once, twice = (sum(m == k for g, m in self.count.items() if len(g) == length) for k in (1, 2))
        return once / (once + 2 * twice) if once and twice else 0.5

    def p(self, word, context):
        context = self.cut(context)
        grams = [gram for gram in self.follow.get(context, []) if gram in self.kept]
        if context and not (grams and self.usable(context)):
            return self.p(word, context[1:])
        if word not in self.words:
            return 0.0
        d = self.discount(len(context) + 1) if len(grams) < len(self.words) else 0.0
        everything = sum(self.count[gram] for gram in self.follow[context])
        known = {gram[-1]: (self.count[gram] - d) / everything for gram in grams}
        if word in known:
            return known[word]
        left = 1 - sum(known.values())
        if not context:
            return left / (len(self.words) - len(known))
        return left * self.p(word, context[1:]) / sum(self.p(w, context[1:]) for w in self.words if w not in known)


FORMULAS = {"kneser-ney": KneserNey, "add-delta": AddDelta, "mle": Likelihood, "backoff": BackOff}
