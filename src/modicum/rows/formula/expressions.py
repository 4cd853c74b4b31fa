"""Expressions of a formula: a small language with its own interpreter.

An expression may come from an untrusted file, so it is never passed to Python's `eval`: its syntax
tree is checked against a short list of operations before it is evaluated. The list has functions
that work row by row, and a few stateful transforms (splines, centring). Rows arrive in chunks, so a
plain mean or maximum would be that of a chunk.
"""

from __future__ import annotations

import ast
import keyword
import re
from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from modicum.errors import DataError, SettingError, suggestion
from modicum.rows.description import Array, Level, level_places

LONGEST = 10_000  # characters per expression
LARGEST = 1_000  # of a number of knots, degrees of freedom or powers
BACKTICKS = re.compile(r"`([^`]+)`")
PLACEHOLDER = re.compile(r"_column_([0-9]+)_")

NUMPY = (
    *("log", "log10", "log2", "log1p", "exp", "exp2", "expm1", "sqrt", "cbrt", "square", "power"),
    *("abs", "absolute", "fabs", "sign", "floor", "ceil", "trunc", "rint", "clip", "mod"),
    *("minimum", "maximum", "fmin", "fmax", "where", "hypot", "isfinite", "isnan"),
    *("sin", "cos", "tan", "arcsin", "arccos", "arctan", "arctan2", "sinh", "cosh", "tanh"),
    *("arcsinh", "arccosh", "arctanh", "deg2rad", "rad2deg"),
    *("logical_and", "logical_or", "logical_not", "logical_xor"),
)
ROW_BY_ROW: dict[str, Callable[..., Any]] = {name: getattr(np, name) for name in NUMPY}
ROW_BY_ROW["round"] = np.rint
STATEFUL = ("bs", "cr", "cs", "cc", "poly", "center", "scale", "standardize")
CONTRASTS = {
    "treatment": "TreatmentContrasts",
    "sum": "SumContrasts",
    "helmert": "HelmertContrasts",
    "diff": "DiffContrasts",
    "poly": "PolyContrasts",
}
PATSY = {"Treatment": "treatment", "Sum": "sum", "Helmert": "helmert", "Diff": "diff"}

BINARY: dict[type[ast.operator], Callable[..., Any]] = {
    ast.Add: np.add,
    ast.Sub: np.subtract,
    ast.Mult: np.multiply,
    ast.Div: np.true_divide,
    ast.FloorDiv: np.floor_divide,
    ast.Mod: np.mod,
    ast.Pow: np.power,
    ast.BitAnd: np.logical_and,
    ast.BitOr: np.logical_or,
}
COMPARISONS: dict[type[ast.cmpop], Callable[..., Any]] = {
    ast.Lt: np.less,
    ast.LtE: np.less_equal,
    ast.Gt: np.greater,
    ast.GtE: np.greater_equal,
    ast.Eq: np.equal,
    ast.NotEq: np.not_equal,
}
State: TypeAlias = dict[str | int, object]
"""State of a transform: numbers, and lists and mappings of them."""


class LevelArray(NamedTuple):
    """A column of text, categories or truth values: its distinct values, and a code per row."""

    values: tuple[Level, ...]
    codes: Array


class ColumnArray(NamedTuple):
    """The result of a transform such as a spline: several columns (rows, k).

    `spans`: the columns span the intercept, so that the first may be left out.
    """

    values: Array
    names: tuple[str, ...]
    spans: bool


Value: TypeAlias = Array | LevelArray | ColumnArray


class Columns(Protocol):
    """The columns that expressions read."""

    def column(self, name: str) -> Array | LevelArray:
        """Return a column: floats, truth values or levels."""

    def row(self, index: int) -> int:
        """Return the number that a row of this chunk has in the source."""


@dataclass(frozen=True)
class Contrast:
    """How levels become columns where they do not stay codes: formulaic's contrasts by name."""

    name: str
    options: tuple[tuple[str, Level], ...] = ()

    def matrix(self, levels: tuple[Level, ...]) -> tuple[Array, tuple[str, ...]]:
        """Return a row of numbers per level, and the names of the columns."""
        from formulaic.transforms import contrasts

        contrast = getattr(contrasts, CONTRASTS[self.name])(**dict(self.options))
        matrix = np.asarray(
            contrast.get_coding_matrix(list(levels), reduced_rank=True), dtype=float
        )
        names = contrast.get_coding_column_names(list(levels), reduced_rank=True)
        return matrix, tuple(map(str, names))


@dataclass(frozen=True)
class CategoricalCall:
    """The arguments of ``C(inner, contrasts, levels=[...])``."""

    inner: Expression
    contrast: Contrast | None
    reference: Level | None
    levels: tuple[Level, ...]
    spans: bool


@dataclass(frozen=True)
class Expression:
    """A checked expression; columns whose names are not Python names are in backticks.

    Examples
    --------
    >>> Expression("np.log(`air time` + 1)").names
    ('air time',)
    >>> Expression("__import__('os').system('ls')")
    Traceback (most recent call last):
        ...
    modicum.errors.SettingError: the formula holds "__import__('os').system('ls')", and formulas \
call functions by name only, as in log(x): compute such a column first.
    """

    text: str

    def __post_init__(self) -> None:
        for node in self._walk(self.tree):
            self._check(node)

    @classmethod
    def column(cls, name: str) -> Expression:
        """Return the expression that is one column."""
        plain = name.isidentifier() and not keyword.iskeyword(name)
        return cls(name if plain else f"`{name}`")

    @cached_property
    def _quoted(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(BACKTICKS.findall(self.text)))

    @cached_property
    def tree(self) -> ast.expr:
        """The syntax tree."""
        if len(self.text) > LONGEST:
            raise SettingError(f"an expression of the formula is longer than {LONGEST} letters.")
        code = BACKTICKS.sub(lambda m: f"_column_{self._quoted.index(m[1])}_", self.text)
        try:
            return ast.parse(code.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise SettingError(
                f"the formula holds {self.text[:80]!r}, which is no expression: check brackets, "
                "commas and operators."
            ) from None

    @property
    def label(self) -> str:
        """The expression's name in names of columns."""
        name = self.bare
        return self.text if name is None else name

    @property
    def bare(self) -> str | None:
        """The column's name where the expression is a column alone."""
        return self._name(self.tree) if isinstance(self.tree, ast.Name) else None

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Every column the expression reads."""
        names = []
        for node in self._walk(self.tree):
            if isinstance(node, ast.Name):
                names.append(self._name(node))
            elif isinstance(node, ast.Call) and _function(node) == "Q":
                names.append(str(_constant(node.args[0])))
        return tuple(dict.fromkeys(names))

    @property
    def stateful(self) -> bool:
        """Whether it contains a transform that must learn from all rows."""
        calls = (n for n in self._walk(self.tree) if isinstance(n, ast.Call))
        return any(_function(call) in STATEFUL for call in calls)

    @property
    def local(self) -> int:
        """Number of adjacent columns that contain all non-zero values of a row; 0: unknown.

        A B-spline of degree k differs from 0 between k + 2 knots, and so do k + 1 of them anywhere.
        """
        call = self.tree
        if not isinstance(call, ast.Call) or _function(call) != "bs":
            return 0
        words = {word.arg: word.value for word in call.keywords}
        degree = call.args[3] if len(call.args) > 3 else words.get("degree")
        value = 3 if degree is None else _constant(degree)
        return value + 1 if isinstance(value, int) and value >= 0 else 0

    @cached_property
    def categorical(self) -> CategoricalCall | None:
        """The arguments of C(...), if the expression is such a call."""
        call = self.tree
        if not isinstance(call, ast.Call) or _function(call) != "C":
            return None
        inner = Expression(self._source(call.args[0]))
        if inner.stateful:
            raise SettingError(f"{self.text} makes levels of a spline or a scaled column: it "
                               "must be given a column of levels.")  # fmt: skip
        keywords = {word.arg: word.value for word in call.keywords}
        how = call.args[1] if len(call.args) > 1 else keywords.get("contrasts")
        contrast, reference = self._contrast(how)
        levels = tuple(_constants(keywords["levels"])) if "levels" in keywords else ()
        spans = _constant(keywords["spans_intercept"]) if "spans_intercept" in keywords else True
        return CategoricalCall(inner, contrast, reference, levels, bool(spans))

    def evaluate(
        self, columns: Columns, states: MutableMapping[str, State], learning: bool = False
    ) -> Value:
        """Return the expression's value for some rows.

        Parameters
        ----------
        columns
            Those rows.
        states
            States of transforms, by the text of their call.
        learning
            Whether the rows are all rows, from which transforms learn.
        """
        with np.errstate(all="ignore"):  # values that are not finite are refused later, by name
            value = _Interpreter(self, columns, states, learning).value(self.tree)
        if isinstance(value, str | None):
            raise SettingError(f"the formula holds {self.text!r}, which is not computed from rows.")
        if isinstance(value, LevelArray | ColumnArray):
            return value
        return np.asarray(value)

    @property
    def tidy(self) -> str:
        """The text, with Python's own spacing."""
        return self._source(self.tree)

    def _name(self, node: ast.Name) -> str:
        match = PLACEHOLDER.fullmatch(node.id)
        if match and int(match[1]) < len(self._quoted):
            return self._quoted[int(match[1])]
        return node.id

    def _source(self, node: ast.AST) -> str:
        """Text of a part of the expression, with its backticks."""
        return PLACEHOLDER.sub(lambda m: f"`{self._quoted[int(m[1])]}`", ast.unparse(node))

    def _walk(self, node: ast.AST) -> Iterator[ast.AST]:
        """All nodes but the names of functions."""
        yield node
        for child in ast.iter_child_nodes(node):
            if isinstance(node, ast.Call) and child is node.func:
                continue
            if isinstance(node, ast.Call) and _function(node) == "C" and child is not node.args[0]:
                continue  # contrasts and levels, which `categorical` reads
            yield from self._walk(child)

    def _check(self, node: ast.AST) -> None:
        """Refuse operations that the interpreter does not have."""
        passive = ast.Name | ast.List | ast.Tuple | ast.keyword | ast.operator | ast.cmpop
        if isinstance(node, passive | ast.unaryop | ast.Load):
            return
        if isinstance(node, ast.Constant) and isinstance(node.value, str | int | float | None):
            return
        if isinstance(node, ast.BinOp) and type(node.op) in BINARY:
            return
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd | ast.Invert):
            return
        if isinstance(node, ast.Compare):
            if all(
                type(op) in COMPARISONS or isinstance(op, ast.In | ast.NotIn) for op in node.ops
            ):
                return
        elif isinstance(node, ast.Call):
            self._check_call(node)
            return
        elif isinstance(node, ast.BoolOp) or (
            isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
        ):
            raise SettingError(
                f"the formula holds {self._source(node)!r}: write & for and, | for or, ~ for not, "
                "with brackets around comparisons."
            )
        raise SettingError(
            f"the formula holds {self._source(node)[:80]!r}, which is more than a formula may "
            "compute: compute such a column first."
        )

    def _check_call(self, call: ast.Call) -> None:
        name = _function(call)
        known = (*ROW_BY_ROW, *STATEFUL, "C", "I", "Q")
        if name is None:
            raise SettingError(
                f"the formula holds {self._source(call)[:80]!r}, and formulas call functions by "
                "name only, as in log(x): compute such a column first."
            )
        if name not in known:
            raise SettingError(
                f"the formula calls {name}, which is not a function it knows"
                f"{suggestion(name, known)}: it may call what works row by row ({_some(known)}), "
                "so compute other columns first."
            )
        if any(word.arg is None for word in call.keywords) or any(
            isinstance(argument, ast.Starred) for argument in call.args
        ):
            raise SettingError(f"the formula calls {name} with starred arguments: spell them out.")
        if not call.args:
            raise SettingError(f"the formula calls {name} without a column: name one.")
        if name == "C" and call is not self.tree:
            raise SettingError(f"{self.text}: C(...) must stand by itself.")
        if name == "Q" and not isinstance(call.args[0], ast.Constant):
            raise SettingError("Q(...) takes the name of a column in quotation marks.")

    def _contrast(self, node: ast.AST | None) -> tuple[Contrast | None, Level | None]:
        """Return the contrast, None for treatment contrasts, and the reference of the latter."""
        if node is None:
            return None, None
        head: ast.AST = node.func if isinstance(node, ast.Call) else node
        name = None
        if isinstance(head, ast.Attribute) and isinstance(head.value, ast.Name):
            name = head.attr.lower() if head.value.id == "contr" else None
        elif isinstance(head, ast.Name):
            name = PATSY.get(head.id)
        if name not in CONTRASTS:
            raise SettingError(
                f"{self.text}: contrasts are {', '.join('contr.' + c for c in CONTRASTS)}, or "
                'contr.treatment("LEVEL") for another reference.'
            )
        options: dict[str, Level] = {}
        if isinstance(node, ast.Call):
            options = {str(word.arg): _constant(word.value) for word in node.keywords}
            if node.args:
                options["base"] = _constant(node.args[0])
        if name == "treatment":
            reference = options.pop("base", options.pop("reference", None))
            if options:
                raise SettingError(f"{self.text}: contr.treatment takes a reference level only.")
            return None, reference
        allowed = {"helmert": {"reverse", "scale"}, "diff": {"backward"}}.get(name, set())
        if not set(options) <= allowed:
            takes = ", ".join(sorted(allowed)) or "no options"
            raise SettingError(f"{self.text}: contr.{name} takes {takes}.")
        return Contrast(name, tuple(options.items())), None


class _Interpreter:
    """Evaluates a checked tree for some rows."""

    def __init__(
        self,
        expression: Expression,
        columns: Columns,
        states: MutableMapping[str, State],
        learning: bool,
    ) -> None:
        self.expression, self.columns = expression, columns
        self.states, self.learning = states, learning

    def value(self, node: ast.AST) -> Any:  # numbers, text, arrays: what an expression can be
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.List | ast.Tuple):
            return [self.value(entry) for entry in node.elts]
        if isinstance(node, ast.Name):
            return self.columns.column(self.expression._name(node))
        if isinstance(node, ast.BinOp):
            both = self._number(node.left), self._number(node.right)
            return BINARY[type(node.op)](*both)
        if isinstance(node, ast.UnaryOp):
            inner = self._number(node.operand)
            if isinstance(node.op, ast.Invert):
                return np.logical_not(inner)
            return np.negative(inner) if isinstance(node.op, ast.USub) else inner
        if isinstance(node, ast.Compare):
            return self._compare(node)
        assert isinstance(node, ast.Call), "the check lets nothing else through"
        return self._call(node)

    def _number(self, node: ast.AST) -> Array | float:
        """Return a number, or an array of floats or truth values."""
        value = self.value(node)
        if isinstance(value, LevelArray):
            truth = set(value.values) <= {True, False} and all(
                isinstance(v, bool) for v in value.values
            )
            if truth:
                return np.array(value.values, dtype=bool)[value.codes]
        if isinstance(value, LevelArray | ColumnArray | str | list | None):
            kind = {LevelArray: "levels", ColumnArray: "several columns"}.get(
                type(value), "no number"
            )
            raise SettingError(
                f"the formula computes with {self.expression._source(node)!r}, which is {kind}: "
                "use a column of numbers."
            )
        # As floats: powers of Python's integers could grow without bound.
        return value if isinstance(value, np.ndarray) else float(value)

    def _compare(self, node: ast.Compare) -> Array:
        result = np.asarray(True)
        parts = [node.left, *node.comparators]
        for op, left, right in zip(node.ops, parts[:-1], parts[1:], strict=True):
            result = np.logical_and(result, self._compare_two(op, left, right))
        return np.asarray(result)

    def _compare_two(self, op: ast.cmpop, left: ast.AST, right: ast.AST) -> Array:
        a, b = self.value(left), self.value(right)
        if isinstance(b, LevelArray) and not isinstance(a, LevelArray):
            a, b = b, a
        same = isinstance(op, ast.Eq | ast.NotEq | ast.In | ast.NotIn)
        if same and isinstance(a, LevelArray) and isinstance(b, str | int | float | list):
            sought = b if isinstance(b, list) else [b]
            hit = np.array([p >= 0 for p in level_places(sought, a.values)] or [False])[a.codes]
            return hit if isinstance(op, ast.Eq | ast.In) else ~hit
        if isinstance(op, ast.In | ast.NotIn):
            if not isinstance(b, list) or not all(isinstance(v, int | float) for v in b):
                raise SettingError(f"{self.expression.text}: write x in [1, 2, 3].")
            hit = np.isin(self._number(left), b)
            return hit if isinstance(op, ast.In) else ~hit
        return COMPARISONS[type(op)](self._number(left), self._number(right))

    def _call(self, call: ast.Call) -> Value:
        name = _function(call)
        if name == "I":
            return self.value(call.args[0])
        if name == "Q":
            return self.columns.column(str(_constant(call.args[0])))
        if name in STATEFUL:
            return self._transform(name, call)
        assert name is not None
        arguments = [self._number(argument) for argument in call.args]
        words = {str(word.arg): self._number(word.value) for word in call.keywords}
        try:
            return ROW_BY_ROW[name](*arguments, **words)
        except (TypeError, ValueError):
            text = self.expression._source(call)
            raise SettingError(f"{text} cannot be computed: check its arguments.") from None

    def _transform(self, name: str, call: ast.Call) -> Array | ColumnArray:
        """Apply a transform, which learns its state from all rows on the first reading."""
        from formulaic.transforms import TRANSFORMS

        text = self.expression._source(call)
        data = np.asarray(self._number(call.args[0]), dtype=float)
        # Any: what a user wrote, which the transform checks
        options: list[Any] = [self.value(argument) for argument in call.args[1:]]
        words: dict[str, Any] = {str(word.arg): self.value(word.value) for word in call.keywords}
        if any(w.startswith("_") for w in words) or not _plain([*options, *words.values()]):
            raise SettingError(f"{text} cannot be computed: check its arguments.")
        sizes = [*options, words.get("df"), words.get("degree")]
        if any(isinstance(size, int | float) and size > LARGEST for size in sizes):
            raise SettingError(f"{text} would make more than {LARGEST:,} columns: make fewer.")
        if text not in self.states and not self.learning:
            raise DataError(f"the encoding knows nothing of {text}: it is damaged, fit again.")
        state = self.states.setdefault(text, {})
        before = dict(state)
        self._require_range(name, text, data, words, before)
        try:
            if self.learning and name == "bs" and not state:
                state.update(_spline_memory(data, *options, **words))
                data = data[:1]  # the columns of all rows would be many times their size
            result = TRANSFORMS[name](data, *options, **words, _state=state)
        except (TypeError, ValueError, ArithmeticError, KeyError, IndexError, AttributeError) as e:
            reason = (str(e).splitlines() or [type(e).__name__])[0].rstrip(".")
            raise SettingError(f"{text} cannot be computed ({reason}).") from None
        if not self.learning and _keys(state) != _keys(before):
            raise DataError(f"the encoding knows too little of {text}: it is damaged, fit again.")
        return _as_columns(result, len(data))

    def _require_range(
        self, name: str, text: str, data: Array, words: dict[str, object], state: State
    ) -> None:
        """Refuse values outside the range of a B-spline that does not say what to do there."""
        low = state.get("lower_bound", words.get("lower_bound"))
        high = state.get("upper_bound", words.get("upper_bound"))
        if name != "bs" or words.get("extrapolation", "raise") != "raise" or len(data) == 0:
            return
        outside = np.zeros(len(data), dtype=bool)
        if isinstance(low, int | float):
            outside |= data < low
        if isinstance(high, int | float):
            outside |= data > high
        if outside.any():
            at = int(np.argmax(outside))
            lower, upper = ("..." if v is None else f"{v:g}" for v in (low, high))
            raise DataError(
                f"{text} is a spline from {lower} to {upper}, and row {self.columns.row(at)} has "
                f'{data[at]:g}: leave such rows out, or fit with extrapolation="clip" or '
                '"extend" in bs(...).'
            )


def _spline_memory(
    x: Array,
    df: int | None = None,
    knots: list[float] | None = None,
    degree: int = 3,
    include_intercept: bool = False,
    lower_bound: float | None = None,
    upper_bound: float | None = None,
    extrapolation: str = "raise",
) -> State:
    """The state that formulaic's `bs` learns from a column: bounds, and quantiles as knots."""
    if df is not None and knots is not None:
        raise ValueError("You cannot specify both `df` and `knots`.")
    low = float(x.min()) if lower_bound is None else float(lower_bound)
    high = float(x.max()) if upper_bound is None else float(upper_bound)
    inner = list(knots or [])
    if df:
        count = df - degree - include_intercept
        if count < 0:
            raise ValueError(f"df must be at least {degree + include_intercept}")
        within = x if extrapolation in ("raise", "extend") else x[(x >= low) & (x <= high)]
        inner = np.quantile(within, np.linspace(0, 1, count + 2))[1:-1].tolist()
    padded = np.pad([low, *inner, high], degree, mode="edge").tolist()
    return {"lower_bound": low, "upper_bound": high, "knots": padded}


def _function(call: ast.Call) -> str | None:
    """Name of the function that is called: log, or log of np.log."""
    if isinstance(call.func, ast.Name):
        return call.func.id
    head = call.func
    if not isinstance(head, ast.Attribute) or not isinstance(head.value, ast.Name):
        return None
    if head.value.id == "np":
        return head.attr if head.attr in ROW_BY_ROW else f"np.{head.attr}"
    return None


def _constant(node: ast.AST) -> Level:
    """Return a text or number of the formula."""
    negative = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)
    value = node.operand if negative else node  # type: ignore[attr-defined]
    if isinstance(value, ast.Constant) and isinstance(value.value, str | int | float):
        return -value.value if negative else value.value  # type: ignore[operator]
    raise SettingError(f"the formula holds {ast.unparse(node)!r} where a text or number must be.")


def _constants(node: ast.AST) -> list[Level]:
    if not isinstance(node, ast.List | ast.Tuple):
        raise SettingError(f"levels must be a list such as ['a', 'b'], not {ast.unparse(node)!r}.")
    return [_constant(entry) for entry in node.elts]


def _plain(options: list[object]) -> bool:
    """Whether the options of a transform are texts and numbers, and short lists of them."""
    return all(
        (len(value) <= LARGEST and _plain(value))
        if isinstance(value, list)
        else isinstance(value, str | int | float | None)
        for value in options
    )


def _as_columns(result: object, n: int) -> Array | ColumnArray:
    """Convert the result of a transform of formulaic to arrays."""
    metadata = getattr(result, "__formulaic_metadata__", None)
    spans = bool(metadata is not None and metadata.spans_intercept)
    if isinstance(result, dict):
        if not result:
            return ColumnArray(np.zeros((n, 0)), (), spans)
        values = np.column_stack(
            [np.broadcast_to(np.asarray(v, float), n) for v in result.values()]
        )
        return ColumnArray(values, tuple(map(str, result)), spans)
    array = np.asarray(result, dtype=float)
    if array.ndim == 1:
        return array
    column_names = None if metadata is None else metadata.column_names
    names = column_names or tuple(range(1, array.shape[1] + 1))
    return ColumnArray(array, tuple(map(str, names)), spans)


def _keys(state: State) -> str:
    return ",".join(sorted(map(str, state)))


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(names[:6]) + ", ..., bs, C"
