"""The table of results: Polars', with a line that says what is in it, and a way to pandas."""

from typing import Any

import polars

from bipars.errors import UsageError


class Results(polars.DataFrame):
    """One row per run and evaluation. All of Polars' methods work on it; most return a plain table of Polars'."""

    def to_pandas(self, **options: Any) -> Any:
        """The same as a table of pandas'; what was not measured is NaN there."""
        try:
            import pandas
        except ImportError:
            raise UsageError("a table of pandas' needs a package that is not installed: pip install pandas") from None
        if options:  # those of Polars' own conversion, by way of Arrow
            return super().to_pandas(**options)
        return pandas.DataFrame(self.to_dict(as_series=False))

    def __repr__(self) -> str:
        return f"{self._summary()}\n{super().__repr__()}"

    def _repr_html_(self, *, _from_series: bool = False) -> str:
        return f"<p>{self._summary()}</p>{super()._repr_html_(_from_series=_from_series)}"

    def _summary(self) -> str:
        if not {"cell", "env", "method", "seed", "step"} <= set(self.columns):  # somebody has selected a part
            return f"{self.height} rows"
        runs = self.select("cell", "seed").unique().height
        methods, envs = (sorted(self[name].unique()) for name in ("method", "env"))
        last = int(self["step"].to_numpy().max())
        return f"{runs} runs of {', '.join(methods)} on {', '.join(envs)}, up to step {last:,}"
