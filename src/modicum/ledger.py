"""The ledger: an exact count of a run's row evaluations, by purpose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from modicum.errors import SettingError
from modicum.markup import box, table, tag

Kind = Literal["density", "gradient", "hessian"]
Saved: TypeAlias = Mapping[str, Any]  # as json.loads returns it


@dataclass(repr=False)
class Ledger:
    """Row evaluations by purpose and kind: the papers' measure of cost (HMC-ECS, eq. 3.2).

    One *evaluation* is one row's log-density, gradient or Hessian at one parameter value;
    a gradient that yields the density on the way counts once.

    Parameters
    ----------
    rows
        Number of rows n in the data set.
    full_data
        Evaluations that full-data HMC with the same trajectories would have cost; ``None`` if the
        method itself uses all rows.
    counts
        Evaluations by (purpose, kind).
    sweeps
        Complete sweeps over the data set, included in the counts.
    unit
        What is counted: "row", or "group" if group effects are integrated out, since a group is
        then evaluated as a whole.
    collapsed
        Distinct rows and all rows of the table, if equal rows are evaluated as one.

    Examples
    --------
    >>> ledger = Ledger(rows=10_000, full_data=60_000_000)
    >>> ledger.add("mode", 30_000, "hessian", passes=3)
    >>> ledger.add("sampling", 120_000, "gradient")
    >>> ledger.evaluations, ledger.passes, ledger.share
    (150000, 15.0, 0.0025)
    >>> print(ledger)
    150,000 row evaluations: 15.0 passes over 10,000 rows
      purpose   kind      evaluations  passes
      mode      hessian        30,000     3.0
      sampling  gradient      120,000    12.0
    full-data HMC: 60,000,000 evaluations; this run: 0.25% of that
    """

    rows: int
    full_data: int | None = None
    counts: dict[tuple[str, str], int] = field(default_factory=dict)
    sweeps: int = 0
    unit: str = "row"
    collapsed: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise SettingError(f"a ledger needs at least one row, not {self.rows}.")

    def add(self, purpose: str, evaluations: int, kind: Kind, passes: int = 0) -> None:
        """Enter `evaluations` row evaluations, which include `passes` complete sweeps.

        `passes` adds nothing to the count: three Newton steps on all n rows are
        ``add("mode", 3 * n, "hessian", passes=3)``.
        """
        evaluations, passes = int(evaluations), int(passes)
        if not 0 <= passes * self.rows <= evaluations:
            raise SettingError(
                f"{passes} passes over {self.rows} rows are {passes * self.rows} evaluations, but "
                f"{evaluations} were entered; count the passes' rows in `evaluations` too."
            )
        key = (purpose, kind)
        self.counts[key] = self.counts.get(key, 0) + evaluations
        self.sweeps += passes

    @property
    def evaluations(self) -> int:
        """Total number of row evaluations."""
        return sum(self.counts.values())

    @property
    def passes(self) -> float:
        """Total number of row evaluations, in passes over the data set."""
        return self.evaluations / self.rows

    @property
    def by_purpose(self) -> dict[str, int]:
        """Evaluations for each purpose, in order of first entry."""
        return self._totals(0)

    @property
    def by_kind(self) -> dict[str, int]:
        """Evaluations of each kind."""
        return self._totals(1)

    @property
    def share(self) -> float | None:
        """Evaluations as a share of those of full-data HMC; None if the latter are unknown."""
        return self.evaluations / self.full_data if self.full_data else None

    def merge(self, other: Ledger) -> Ledger:
        """Add another ledger of the same rows to this one (in place), and return this one."""
        if other.rows != self.rows:
            raise SettingError(
                f"ledgers of {self.rows} and of {other.rows} rows count different data sets and "
                "cannot be merged."
            )
        for key, evaluations in dict(other.counts).items():
            self.counts[key] = self.counts.get(key, 0) + evaluations
        self.sweeps += other.sweeps
        if other.full_data is not None:
            self.full_data = (self.full_data or 0) + other.full_data
        return self

    def since(self, before: Saved) -> dict[str, Any]:  # ready for json.dumps
        """Return the entries made since `before` (an earlier `to_dict`), in the same form."""
        earlier = {(purpose, kind): n for purpose, kind, n in before["counts"]}
        fresh = {key: n - earlier.get(key, 0) for key, n in self.counts.items()}
        return Ledger(
            self.rows,
            counts={key: n for key, n in fresh.items() if n},
            sweeps=self.sweeps - before["sweeps"],
            unit=self.unit,
        ).to_dict()

    def to_dict(self) -> dict[str, Any]:  # ready for json.dumps
        """Return plain types only, ready for JSON."""
        return {
            "rows": self.rows,
            "full_data": self.full_data,
            "sweeps": self.sweeps,
            "unit": self.unit,
            **({} if self.collapsed is None else {"collapsed": list(self.collapsed)}),
            "counts": [[purpose, kind, n] for (purpose, kind), n in self.counts.items()],
        }

    @classmethod
    def from_dict(cls, values: Saved) -> Ledger:
        """Make a ledger from the result of `to_dict`."""
        full_data, collapsed = values["full_data"], values.get("collapsed")
        return cls(
            rows=int(values["rows"]),
            full_data=None if full_data is None else int(full_data),
            counts={(str(purpose), str(kind)): int(n) for purpose, kind, n in values["counts"]},
            sweeps=int(values["sweeps"]),
            unit=str(values.get("unit", "row")),
            collapsed=None if collapsed is None else (int(collapsed[0]), int(collapsed[1])),
        )

    @property
    def data(self) -> str:
        """The data set in words: its rows or groups, and how many rows were equal."""
        if self.collapsed is None:
            return f"{self.rows:,} {self.unit}s"
        distinct, table = self.collapsed
        of = f"{distinct:,} distinct rows of {table:,}"
        return of if self.unit == "row" else f"{self.rows:,} {self.unit}s ({of})"

    def lines(self) -> list[tuple[str, str, str, str]]:
        """Return the table that is shown: its head, and a line per purpose and kind."""
        return [
            ("purpose", "kind", "evaluations", "passes"),
            *((p, k, f"{n:,}", f"{n / self.rows:,.1f}") for (p, k), n in self.counts.items()),
        ]

    def _repr_html_(self) -> str:
        words, (head, *lines) = str(self).splitlines(), self.lines()
        share = None if self.share is None else tag("div", words[-1])
        return box(tag("b", words[0]), table(head, lines), share)

    def __str__(self) -> str:
        total = f"{self.evaluations:,} {self.unit} evaluations"
        lines = [f"{total}: {self.passes:,.1f} passes over {self.data}"]
        if self.counts:
            wide = [max(map(len, column)) for column in zip(*self.lines(), strict=True)]
            lines += [
                f"  {p:<{wide[0]}}  {k:<{wide[1]}}  {n:>{wide[2]}}  {s:>{wide[3]}}"
                for p, k, n, s in self.lines()
            ]
        if self.share is not None:
            lines.append(
                f"full-data HMC: {self.full_data:,} evaluations; this run: {self.share:.2%} of that"
            )
        return "\n".join(lines)

    __repr__ = __str__

    def _totals(self, part: int) -> dict[str, int]:
        totals: dict[str, int] = {}
        for key, n in self.counts.items():
            totals[key[part]] = totals.get(key[part], 0) + n
        return totals
