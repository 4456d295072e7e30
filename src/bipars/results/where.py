"""What decides the weight of a term."""

import numpy as np

RANKED = 12
BINS = 8


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
