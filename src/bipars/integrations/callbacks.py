"""What users hang into training: subclass `Callback`, or pass a plain function of (agent, row)."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bipars.errors import UsageError
from bipars.tensorboard import ScalarWriter, require_tensorboard

if TYPE_CHECKING:
    from bipars.agent import BiPaRS

UpdateFunction = Callable[["BiPaRS", Mapping[str, Any]], bool | None]


class Callback:
    """Every method may be left out. Returning False from one of the first three stops the training."""

    def on_start(self, agent: "BiPaRS") -> bool | None:
        """Before the first update."""

    def on_update(self, agent: "BiPaRS", row: Mapping[str, Any]) -> bool | None:
        """After every update, with its row of metrics."""

    def on_evaluation(self, agent: "BiPaRS", row: Mapping[str, Any]) -> bool | None:
        """After an update whose policy was evaluated."""

    def on_end(self, agent: "BiPaRS") -> None:
        """When training ends, also where it was stopped or failed."""


class _FunctionCallback(Callback):
    def __init__(self, function: UpdateFunction) -> None:
        self.function = function

    def on_update(self, agent: "BiPaRS", row: Mapping[str, Any]) -> bool | None:
        return self.function(agent, row)


def as_callbacks(given: "Callback | UpdateFunction | Sequence[Callback | UpdateFunction] | None") -> list[Callback]:
    if given is None:
        return []
    items = list(given) if isinstance(given, Sequence) else [given]
    for item in items:
        if not isinstance(item, Callback) and not callable(item):
            raise UsageError(f"callback is {item!r}; expected a bipars.Callback or a function of (agent, row)")
    return [item if isinstance(item, Callback) else _FunctionCallback(item) for item in items]


class TensorBoard(Callback):
    """Writes every number of every update as a TensorBoard scalar."""

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        self._writer: ScalarWriter | None = None
        require_tensorboard()

    def on_start(self, agent: "BiPaRS") -> None:
        self._writer = ScalarWriter(self.directory, agent.num_timesteps + 1)

    def on_update(self, agent: "BiPaRS", row: Mapping[str, Any]) -> None:
        assert self._writer is not None
        self._writer.write(row)

    def on_end(self, agent: "BiPaRS") -> None:
        if self._writer is not None:
            self._writer.close()
