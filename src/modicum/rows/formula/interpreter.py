"""The interpreter of formulas, which evaluates checked expressions for some rows.

Functions that work row by row are NumPy's. Stateful transforms learn their state from all rows on
the first reading, and it is kept by the text of their call.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from functools import reduce
from typing import Any, Protocol, TypeAlias

import numpy as np

from modicum.errors import DataError, ModicumError, SettingError
from modicum.rows.coding import Array, LevelArray, level_key
from modicum.rows.formula.expressions import (
    BINARY,
    CENSORING,
    COMPARISONS,
    EXTREMES,
    LOGICAL,
    OF_TRUTHS,
    ROW_BY_ROW,
    STATEFUL,
    Expression,
    constant_of,
    function_of,
)
from modicum.rows.formula.smooths import SMOOTHS, State
from modicum.rows.formula.transforms import SINGLE, ColumnArray, ranges, transformed
from modicum.rows.levels import BatchColumns, ordered

LARGEST = 1_000  # number of knots, degrees of freedom or powers
SINGLE_ROUNDING = 1e-7  # of a number in single precision, relative to it


Value: TypeAlias = Array | LevelArray | ColumnArray

# From the name, column, options and keywords of a transform to its state.
Learn: TypeAlias = Callable[[str, Array, list[object], dict[str, object]], State]


class Columns(Protocol):
    """The columns that expressions read."""

    def column(self, name: str) -> Array | LevelArray:
        """Return a column: floats, booleans or levels."""

    def levels(self, name: str) -> LevelArray:
        """Return a column as levels, whatever its type."""

    def row(self, index: int) -> int:
        """Return the row number in the source of a row of this batch."""


def evaluate(
    expression: Expression,
    columns: Columns,
    states: MutableMapping[str, State],
    learn: Learn | None = None,
) -> Value:
    """Return an expression's value for some rows.

    Parameters
    ----------
    expression
        The expression to evaluate.
    columns
        The columns of these rows.
    states
        States of transforms, by the text of their call.
    learn
        Learns the state of a transform, if these are all rows.
    """
    with np.errstate(all="ignore"):  # values that are not finite are refused later
        value = _Interpreter(expression, columns, states, learn).value(expression.tree)
    if isinstance(value, str | list | None):
        raise SettingError(
            f"the formula holds {expression.text!r}, which is not one number or level per row: "
            "name a column there, or compute one."
        )
    if isinstance(value, LevelArray | ColumnArray):
        return value
    return np.asarray(value)


def level_array(
    expression: Expression, columns: BatchColumns, states: dict[str, State]
) -> LevelArray:
    """Return an expression's values as levels: those of a column, or distinct values."""
    if expression.bare is not None:
        return columns.levels(expression.bare)
    value = evaluate(expression, columns, states)
    if isinstance(value, LevelArray):
        return value
    if isinstance(value, ColumnArray):
        raise SettingError(f"{expression.text} has several columns, so it cannot be levels.")
    distinct, codes = np.unique(np.broadcast_to(value, len(columns)), return_inverse=True)
    return LevelArray(tuple(distinct.tolist()), codes)


class _Interpreter:
    """Evaluates a checked syntax tree for some rows."""

    def __init__(
        self,
        expression: Expression,
        columns: Columns,
        states: MutableMapping[str, State],
        learn: Learn | None,
    ) -> None:
        self.expression, self.columns = expression, columns
        self.states, self.learn = states, learn

    def value(self, node: ast.AST) -> Any:  # a number, text, a list or arrays
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.List | ast.Tuple):
            return [self.value(entry) for entry in node.elts]
        if isinstance(node, ast.Name):
            return self.columns.column(self.expression.column_name(node))
        if isinstance(node, ast.BinOp) and type(node.op) in LOGICAL:
            return LOGICAL[type(node.op)](self._truth(node.left), self._truth(node.right))
        if isinstance(node, ast.BinOp):
            return BINARY[type(node.op)](self._number(node.left), self._number(node.right))
        if isinstance(node, ast.UnaryOp):
            if isinstance(node.op, ast.Invert):
                return np.logical_not(self._truth(node.operand))
            inner = self._number(node.operand)
            return np.negative(inner) if isinstance(node.op, ast.USub) else inner
        if isinstance(node, ast.Compare):
            result = np.asarray(True)
            parts = [node.left, *node.comparators]
            for op, left, right in zip(node.ops, parts[:-1], parts[1:], strict=True):
                result = np.logical_and(result, self._compare_two(op, left, right))
            return np.asarray(result)
        assert isinstance(node, ast.Call), "the check lets nothing else through"
        return self._call(node)

    def _number(self, node: ast.AST) -> Array | float:
        """Return a number, or an array of floats, in which True is 1."""
        value = self._number_or_truth(node)
        if isinstance(value, np.ndarray) and value.dtype == bool:
            return value.astype(np.float64)
        return value

    def _truth(self, node: ast.AST) -> Array | float:
        """Return an operand of &, | or ~: booleans, or numbers that are 0 or 1."""
        value = self._number_or_truth(node)
        other = np.asarray(value)[~np.isin(value, (0, 1))]
        if isinstance(node, ast.Constant) or other.size:
            raise SettingError(
                f"the formula holds {self.expression.text!r}, and &, | and ~ work on true and "
                f"false (or 1 and 0), not on {self.expression.source(node)!r}: compare it with a "
                "number, in brackets, as in (x > 1) & (z > 2)."
            )
        return value

    def _number_or_truth(self, node: ast.AST) -> Array | float:
        """Return a number, or an array of floats or booleans."""
        value = self.value(node)
        if isinstance(value, LevelArray) and all(isinstance(v, bool) for v in value.values):
            return np.array(value.values, dtype=bool)[value.codes]
        if isinstance(value, LevelArray | ColumnArray | str | list | None):
            kind = {LevelArray: "levels", ColumnArray: "several columns"}.get(
                type(value), "no number"
            )
            raise SettingError(
                f"the formula computes with {self.expression.source(node)!r}, which is {kind}: "
                "use a column of numbers."
            )
        # As floats: powers of Python integers could grow without bound.
        return value if isinstance(value, np.ndarray) else float(value)

    def _compare_two(self, op: ast.cmpop, left: ast.AST, right: ast.AST) -> Array:
        a, b = self.value(left), self.value(right)
        if isinstance(b, LevelArray) and not isinstance(a, LevelArray):
            a, b = b, a
        same = isinstance(op, ast.Eq | ast.NotEq | ast.In | ast.NotIn)
        if same and isinstance(a, LevelArray) and isinstance(b, str | int | float | list):
            sought = b if isinstance(b, list) else [b]
            if all(isinstance(v, bool) for v in a.values):  # True may be written as 1
                sought = [v if isinstance(v, str) or v not in (0, 1) else bool(v) for v in sought]
            hit = a.places(sought) >= 0
            return hit if isinstance(op, ast.Eq | ast.In) else ~hit
        if isinstance(op, ast.In | ast.NotIn):
            if not isinstance(b, list) or not all(isinstance(v, int | float) for v in b):
                raise SettingError(f"{self.expression.text}: write x in [1, 2, 3].")
            hit = np.isin(self._number(left), b)
            return hit if isinstance(op, ast.In) else ~hit
        return COMPARISONS[type(op)](self._number(left), self._number(right))

    def _call(self, call: ast.Call) -> Value:
        name = function_of(call)
        if name == "I":
            return self.value(call.args[0])
        if name == "Q":
            return self.columns.column(str(constant_of(call.args[0])))
        if name == "censoring":
            node = call.args[0]
            value = self.value(node)
            if not isinstance(value, LevelArray) or set(value.values) <= {True, False}:
                return np.asarray(self._number(node), float)
            unknown = [level for level in value.values if str(level) not in CENSORING]
            if unknown:
                raise DataError(
                    f"{self.expression.source(node)!r} in cens(...) holds {unknown[0]!r}: it must "
                    f"hold {', '.join(CENSORING)}, or their codes "
                    f"{', '.join(map(str, CENSORING.values()))}."
                )
            return np.array([CENSORING[str(level)] for level in value.values], float)[value.codes]
        if name in STATEFUL:
            return self._transform(name, call)
        assert name is not None
        read = self._number_or_truth if name in OF_TRUTHS else self._number
        arguments = [read(argument) for argument in call.args]
        words = {str(word.arg): read(word.value) for word in call.keywords}
        try:
            if name in EXTREMES:
                return np.asarray(reduce(ROW_BY_ROW[name], arguments))
            return ROW_BY_ROW[name](*arguments, **words)
        except (TypeError, ValueError):
            text = self.expression.source(call)
            raise SettingError(f"{text} cannot be computed: check its arguments.") from None

    def _transform(self, name: str, call: ast.Call) -> Array | ColumnArray:
        """Apply a transform, which learns its state if the rows are all rows."""
        text, smooth = self.expression.source(call), name in SMOOTHS
        of = call.args if smooth else call.args[:1]
        columns = [np.asarray(self._number(argument), dtype=float) for argument in of]
        x = np.stack(np.broadcast_arrays(*columns), axis=-1)
        # Any: the transform checks what the user wrote
        options: list[Any] = [self.value(argument) for argument in call.args[len(of) :]]
        words = self._words(call, options)
        with explained(text):
            options = [self._levels(text)] if smooth else options
            if text not in self.states:
                if self.learn is None:
                    raise DataError(
                        f"the encoding has no state for {text}: it is damaged, fit again."
                    )
                self.states[text] = self.learn(name, x if smooth else x[:, 0], options, words)
            state = dict(self.states[text])
            for j, (low, high) in enumerate(ranges(name, state)):
                x[:, j] = self._in_range(name, x[:, j], words, low, high)
            if self.learn is not None and name not in SINGLE:
                x = x[:1]  # all columns of all rows would take much memory
            result = transformed(name, state, x, options, words)
        if state.keys() != self.states[text].keys():
            raise DataError(f"the encoding of {text} is incomplete: it is damaged, fit again.")
        return result

    def _levels(self, text: str) -> LevelArray | None:
        """Return the levels that have smooths of their own, in their order in the fit."""
        by = self.expression.by
        if by is None:
            return None
        array = self.columns.levels(by)
        if text not in self.states:
            levels = tuple(map(level_key, ordered(by, array.occurring)))
        else:
            levels = tuple(self.states[text]["levels"])
        places = array.places(levels)
        if len(places) and places.min() < 0:
            at = int(np.argmax(places < 0))
            raise DataError(
                f"column {by!r} holds {array.values[array.codes[at]]!r} in row "
                f"{self.columns.row(at)}, and {text} has no smooth for it: leave such rows out."
            )
        return LevelArray(levels, places)

    def _words(self, call: ast.Call, options: list[object]) -> dict[str, Any]:
        """Return the arguments by name of a transform; refuse what cannot be one."""
        text = self.expression.source(call)
        given = {str(word.arg): word.value for word in call.keywords}
        if self.expression.by is not None:
            del given["by"]  # which names levels
        words = {name: self.value(value) for name, value in given.items()}
        if any(w.startswith("_") for w in words) or not _plain([*options, *words.values()]):
            raise SettingError(f"{text} cannot be computed: check its arguments.")
        sizes = [*options, *(words.get(word) for word in ("df", "degree", "k"))]
        if any(isinstance(size, int | float) and size > LARGEST for size in sizes):
            raise SettingError(f"{text} would make more than {LARGEST:,} columns: use fewer.")
        return words

    def _in_range(
        self, name: str, data: Array, words: dict[str, object], low: object, high: object
    ) -> Array:
        """Refuse values outside the range of a spline that has no extrapolation rule.

        A copy of the fit's table in single precision has its ends a little outside: they are
        moved to the ends of the range.
        """
        if words.get("extrapolation", "raise") != "raise" or len(data) == 0:
            return data
        limits = [end if isinstance(end, int | float) else np.nan for end in (low, high)]
        clipped = np.fmin(np.fmax(data, limits[0]), limits[1])
        outside = np.abs(data - clipped) > SINGLE_ROUNDING * np.abs(clipped)
        if outside.any():
            at = int(np.argmax(outside))
            lower, upper = ("..." if v is None else f"{v:g}" for v in (low, high))
            raise DataError(
                f"{self.expression.text} is a spline from {lower} to {upper}, and row "
                f"{self.columns.row(at)} has {data[at]:g}: leave such rows out, or fit with "
                f'extrapolation="clip" or "extend" in {name}(...).'
            )
        return clipped


@contextmanager
def explained(text: str) -> Iterator[None]:
    """Say why a transform cannot be computed."""
    try:
        yield
    except ModicumError:
        raise
    except (TypeError, ValueError, ArithmeticError, KeyError, IndexError, AttributeError) as e:
        reason = (str(e).splitlines() or [type(e).__name__])[0].rstrip(".")
        raise SettingError(f"{text} cannot be computed ({reason}).") from None


def _plain(options: list[object]) -> bool:
    """Whether the options of a transform are text, numbers, and short lists of them."""
    return all(
        (len(value) <= LARGEST and _plain(value))
        if isinstance(value, list)
        else isinstance(value, str | int | float | None)
        for value in options
    )
