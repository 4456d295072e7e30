"""Rows of metrics as TensorBoard scalars, where its package is installed."""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bipars.errors import UsageError


class ScalarWriter:
    """Rows of metrics as TensorBoard events."""

    def __init__(self, directory: Path, first_step: int) -> None:
        """What an earlier writer wrote at or after `first_step` is hidden."""
        require_tensorboard()
        from tensorboardX import SummaryWriter

        self._writer = SummaryWriter(str(directory), purge_step=first_step)

    def write(self, row: Mapping[str, Any]) -> None:
        for name, value in scalars(row).items():
            self._writer.add_scalar(name, value, row["step"])

    def close(self) -> None:
        self._writer.close()


def scalars(row: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a row; what was not measured is left out, and so is where it stands."""
    numbers = {name: value for name, value in row.items() if isinstance(value, (int, float))}
    return {name: value for name, value in numbers.items() if name not in ("round", "step")}


def require_tensorboard() -> None:
    if find_spec("tensorboardX") is None:
        raise UsageError("TensorBoard scalars need a package that is not installed: pip install 'bipars[tensorboard]'")
