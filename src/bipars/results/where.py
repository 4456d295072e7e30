"""Which inputs decide the weight of a term, and whether any decide the term itself."""

import numpy as np

RANKED = 12
BINS = 8
PREDICTED = 0.02
"""Share of a term's variance that inputs explain, above which it is no noise: chance explains 0.01 in one of 100."""
FLAT = 0.05
"""Standard deviation of a weight over visited states, in units of its mean, below which no input decides it."""
PAIRED = 12
"""Inputs at most whose products are looked at, too."""


def explained(inputs: np.ndarray, weights: np.ndarray) -> list[list[float]]:
    """Inputs by how much of the weight's variance each explains alone, the most first: (index, share).

    The correlation ratio over bins of equal counts, less what as many random groups would explain.
    """
    total, count = float(np.var(weights)), len(weights)
    if total < 1e-10 or count <= BINS:
        return []
    found = []
    for i in range(inputs.shape[1]):
        edges = np.unique(np.quantile(inputs[:, i], np.linspace(0, 1, BINS + 1)[1:-1]))
        groups = np.searchsorted(edges, inputs[:, i], side="right")
        names, sizes = np.unique(groups, return_counts=True)
        within = sum(size * np.var(weights[groups == name]) for name, size in zip(names, sizes, strict=True)) / count
        share = 1 - (within / total) * (count - 1) / (count - len(names))
        found.append([i, max(0.0, round(float(share), 4))])
    return sorted(found, key=lambda pair: -pair[1])[:RANKED]


def deciding(inputs: np.ndarray, weights: np.ndarray) -> list[list[float]]:
    """The same, but none of a weight that is nearly the same everywhere."""
    return explained(inputs, weights) if np.std(weights) >= FLAT * abs(np.mean(weights)) else []


def predictable(inputs: np.ndarray, term: np.ndarray) -> bool:
    """Whether an input, or a product of two, explains a part of the term: noise is explained by none."""
    z = (inputs - inputs.mean(axis=0)) / (inputs.std(axis=0) + 1e-12)
    if z.shape[1] <= PAIRED:
        i, j = np.triu_indices(z.shape[1])
        z = np.column_stack([z, z[:, i] * z[:, j]])
    ranked = explained(z, term / max(float(np.abs(term).max()), 1e-12))
    return bool(ranked) and ranked[0][1] > PREDICTED
