"""Reading seed lists as people type them."""

from bipars.errors import UsageError

MAX_SEEDS = 10_000


def parse_seeds(text: str) -> tuple[int, ...]:
    """`0-4` or `0,3,7` or `0-4,10`."""
    seeds: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        try:
            low = int(first)
            high = int(last) if dash else low
        except ValueError:
            raise UsageError(f"seeds are '{text}'; expected numbers such as 0-4 or 0,3,7") from None
        if high < low:
            raise UsageError(f"seeds are '{text}'; the range {part} runs backwards")
        if len(seeds) + high - low >= MAX_SEEDS:
            raise UsageError(f"seeds are '{text}', more than {MAX_SEEDS:,}; each is a run of its own. Take fewer")
        seeds.extend(range(low, high + 1))
    if len(set(seeds)) != len(seeds):
        raise UsageError(f"seeds are '{text}'; a seed stands there twice")
    return tuple(seeds)
