"""Expressions of a formula: a small language, whose interpreter is in `interpreter.py`.

An expression may come from an untrusted file, so it is never passed to Python's `eval`; its syntax
tree is checked here against a short list of operations. These are functions that work row by row
and a few stateful transforms (splines, centring). Rows arrive in batches, so a plain mean or
maximum, which would be that of a batch, is not allowed.
"""

from __future__ import annotations

import ast
import keyword
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from modicum.errors import SettingError, suggestion
from modicum.libraries import formulaic
from modicum.rows.coding import Array, Level, level_names
from modicum.rows.formula.smooths import SMOOTHS
from modicum.rows.formula.transforms import LEARNERS

LONGEST = 10_000  # characters per expression
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
EXTREMES = ("minimum", "maximum", "fmin", "fmax")  # of any number of columns
# How many arguments a function takes, at least and at most, and which of them by name. NumPy would
# take further ones as arrays to write to (out), or leave memory unwritten (where).
ARGUMENTS: dict[str, tuple[int, int]] = {
    **{name: (f.nin, f.nin) for name, f in ROW_BY_ROW.items() if isinstance(f, np.ufunc)},
    **dict.fromkeys(EXTREMES, (2, 100)),
    **{"where": (3, 3), "clip": (2, 3), "I": (1, 1), "Q": (1, 1), "C": (1, 4)},
    **{"s": (1, 7), "te": (1, 5)},
    **{"rw": (1, 3), "car": (1, 2), "mo": (1, 1)},
    "censoring": (1, 1),
}
KEYWORDS = {
    "clip": ("a_min", "a_max", "min", "max"),
    "C": ("contrasts", "levels", "spans_intercept"),
    "s": ("k", "bs", "by", "lower_bound", "upper_bound", "extrapolation"),
    "te": ("k", "extrapolation"),
    "rw": ("lower_bound", "upper_bound"),
}
STRUCTURED = ("rw", "car", "mo")  # whose levels have an order, or neighbours
OF_LEVELS = ("C", *STRUCTURED)  # what they do to levels is read by their owner, not computed
OF_SMOOTHS = "and its settings by name, as in s(x, k=10) and te(x, z, k=5)"
# How many arguments of a term have places and no names, at least and at most.
BY_PLACE = {
    "C": (1, 2, "levels by name, as in C(x, levels=[...])"),
    "s": (1, 1, f"one column, {OF_SMOOTHS}"),
    "te": (2, 3, f"two or three, {OF_SMOOTHS}"),
    "rw": (1, 1, "one column, and its bounds by name"),
    "car": (
        *(2, 2),
        "a column of regions and the name of a table of neighbours, as in car(region, W), with "
        "matrices={'W': pairs}",
    ),
}
PLACES = {"C": ("contrasts",), "car": ("neighbours",), "bs": ("df", "knots", "degree")}
# Names of the codes of `censoring(column)`, which is how a formula reads cens(column).
CENSORING = {"none": 0, "right": 1, "left": -1, "interval": 2}
# Functions whose arguments may be truths; those of all others are numbers.
OF_TRUTHS = {*EXTREMES, "where", *(n for n in NUMPY if "logical" in n)}
STATEFUL = (*LEARNERS, *SMOOTHS)
NATURAL = 'cr(x, df=5, constraints="center")'
CALLED_ELSEWHERE = {  # functions of R, mgcv, brms and patsy, and what to write instead
    "ns": NATURAL,
    "rcs": NATURAL,
    "ti": "te(x, z)",
    "t2": "te(x, z)",
    "factor": "C(x)",
    "Surv": "'time | event(died) ~ ...', and one of the families for times",
    "cbind": "'wins | trials(games) ~ ...', and family='binomial'",
    "mi": "the column itself, and missing='drop' among the arguments",
    "me": "the column itself, whose values then count as exact, or a model of your own (mo.Model)",
    "gp": "s(x), or te(x, z)",
    "gr": (
        "(1 | g) for gr(g), and f + (0 + f || g) for gr(g, by=f); groups with a known covariance "
        "or Student-t effects need a model of your own (mo.Model)"
    ),
    "mm": "(1 | g) for one of the groups, or a model of your own (mo.Model)",
    "mvbind": "one formula for each outcome, and fit them one by one",
    **dict.fromkeys(
        ("ar", "ma", "arma", "cosy", "unstr", "fcor"),
        "s(t) or rw(t) for what changes in time, and (1 | g) for what rows of a group share",
    ),
    "sar": "car(region, W)",
    "ifelse": "where(x > 0, 1, 0)",
    "relevel": "contr.treatment('b') as the second argument of C",
    "cut": "I(x > 0), or make a column of classes first",
}
CONTRASTS = {
    "treatment": "TreatmentContrasts",
    "sum": "SumContrasts",
    "helmert": "HelmertContrasts",
    "diff": "DiffContrasts",
    "poly": "PolyContrasts",
}
OPTIONS = {"helmert": {"reverse", "scale"}, "diff": {"backward"}}
PATSY = {"Treatment": "treatment", "Sum": "sum", "Helmert": "helmert", "Diff": "diff"}

BINARY: dict[type[ast.operator], Callable[..., Any]] = {
    ast.Add: np.add,
    ast.Sub: np.subtract,
    ast.Mult: np.multiply,
    ast.Div: np.true_divide,
    ast.FloorDiv: np.floor_divide,
    ast.Mod: np.mod,
    ast.Pow: np.power,
}
LOGICAL: dict[type[ast.operator], Callable[..., Any]] = {
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
# What the interpreter computes; operators are checked with the node that holds them.
COMPUTED: set[type] = {
    *(ast.Constant, ast.Name, ast.Load, ast.List, ast.Tuple, ast.Call, ast.keyword, type(None)),
    *(ast.BinOp, ast.UnaryOp, ast.USub, ast.UAdd, ast.Invert, ast.Compare, ast.In, ast.NotIn),
}.union(BINARY, LOGICAL, COMPARISONS)


@dataclass(frozen=True)
class Contrast:
    """How levels become numeric columns instead of codes: formulaic's contrasts by name."""

    name: str
    options: Mapping[str, bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.name not in CONTRASTS or not set(self.options) <= OPTIONS.get(self.name, set()):
            raise ValueError(f"the contrasts {self.name[:40]!r} are unknown")

    def matrix(self, levels: tuple[Level, ...]) -> tuple[Array, tuple[str, ...]]:
        """Return the contrast matrix, one row per level, and the names of its columns."""
        named = level_names(levels) if self.name == "treatment" else levels
        contrast = getattr(formulaic.transforms.contrasts, CONTRASTS[self.name])(**self.options)
        matrix = np.asarray(
            contrast.get_coding_matrix(list(levels), reduced_rank=True), dtype=float
        )
        names = contrast.get_coding_column_names(list(named), reduced_rank=True)
        return matrix, tuple(map(str, names))


@dataclass(frozen=True)
class CategoricalCall:
    """The arguments of ``C(x, contrasts, levels=[...])`` after the first."""

    contrast: Contrast | None
    reference: Level | None
    levels: tuple[Level, ...]
    spans: bool


@dataclass(frozen=True)
class Expression:
    """A checked expression; column names that are not Python identifiers are in backticks.

    Examples
    --------
    >>> Expression("np.log(`air time` + 1)").names
    ('air time',)
    >>> Expression("__import__('os').system('ls')")
    Traceback (most recent call last):
        ...
    modicum.errors.SettingError: the formula holds "__import__('os').system('ls')", but formulas \
call functions by name only, as in log(x): compute such a column first.
    """

    text: str

    def __post_init__(self) -> None:
        for node in self._walk(self.tree):
            self._check(node)

    @classmethod
    def column(cls, name: str) -> Expression:
        """Return the expression that consists of one column."""
        if "`" in name or not name:
            return cls("Q(" + repr(name).replace("`", "\\x60") + ")")
        plain = name.isidentifier() and not keyword.iskeyword(name)
        same = unicodedata.is_normalized("NFKC", name)  # Python normalizes names
        return cls(name if plain and same else f"`{name}`")

    @cached_property
    def _quoted(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(BACKTICKS.findall(self.text)))

    @cached_property
    def tree(self) -> ast.expr:
        """The syntax tree."""
        if len(self.text) > LONGEST:
            raise SettingError(f"an expression of the formula is longer than {LONGEST} characters.")
        code = BACKTICKS.sub(lambda m: f"_column_{self._quoted.index(m[1])}_", self.text)
        try:
            return ast.parse(code.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise SettingError(
                f"the formula holds {self.text[:80]!r}, which is not an expression: check "
                "brackets, commas and operators."
            ) from None

    @property
    def label(self) -> str:
        """The name of the expression in column names; of smooths, without their settings."""
        if self.form in STRUCTURED:
            return f"{self.form}({self.inner.text})"
        if self.form in SMOOTHS:
            by = [] if self.by is None else [f"by={self.by}"]
            return f"{self.form}({', '.join([*self.variables, *by])})"
        name = self.bare
        return self.text if name is None else name

    @property
    def call(self) -> ast.Call | None:
        """The call, if the expression is one."""
        return self.tree if isinstance(self.tree, ast.Call) else None

    @cached_property
    def form(self) -> str:
        """The function, if the expression is a call of one: of C, s, te, rw, car or mo, a term."""
        return "" if self.call is None else function_of(self.call) or ""

    @cached_property
    def _given(self) -> dict[str, ast.expr]:
        """The arguments of the call after the first that have names."""
        if self.call is None:
            return {}
        by_place = dict(zip(PLACES.get(self.form, ()), self.call.args[1:], strict=False))
        return by_place | {str(word.arg): word.value for word in self.call.keywords}

    @property
    def is_pooled(self) -> bool:
        """Whether it has coefficients with an sd of their own: a smooth, or neighbours."""
        return self.form in (*SMOOTHS, *STRUCTURED) and self.form != "mo"

    @property
    def regions(self) -> str | None:
        """The name of the table of neighbours in ``car(region, W)``."""
        if self.form != "car":
            return None
        table = self._given["neighbours"]
        return Expression(self.source(table)).bare or str(constant_of(table))

    @property
    def ends(self) -> tuple[float | None, float | None]:
        """The bounds of a random walk, where they are given."""
        given = [self._given.get(word) for word in KEYWORDS["rw"]]
        low, high = (None if node is None else constant_of(node) for node in given)
        if isinstance(low, str) or isinstance(high, str):
            raise SettingError(f"{self.text}: the bounds of a random walk must be numbers.")
        return low, high

    @property
    def variables(self) -> tuple[str, ...]:
        """What the call is a function of, if it is a smooth."""
        return () if self.call is None else tuple(map(self.source, self.call.args))

    @property
    def by(self) -> str | None:
        """The column whose levels have smooths of their own."""
        if self.form not in SMOOTHS or "by" not in self._given:
            return None
        name = Expression(self.source(self._given["by"])).bare
        if name is None:
            raise SettingError(f"{self.text}: by must be the name of a column of levels.")
        return name

    @property
    def bare(self) -> str | None:
        """The column's name if the expression is a single column, else None."""
        return self.column_name(self.tree) if isinstance(self.tree, ast.Name) else None

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Every column the expression reads."""
        names = []
        for node in self._walk(self.tree):
            if isinstance(node, ast.Name):
                names.append(self.column_name(node))
            elif isinstance(node, ast.Call) and function_of(node) == "Q":
                names.append(str(constant_of(node.args[0])))
        return tuple(dict.fromkeys(names))

    @property
    def stateful(self) -> bool:
        """Whether the expression contains a transform that must learn from all rows."""
        calls = (n for n in self._walk(self.tree) if isinstance(n, ast.Call))
        return any(function_of(call) in STATEFUL for call in calls)

    @property
    def local(self) -> int:
        """Number of adjacent columns that contain all non-zero values of a row; 0: unknown.

        A B-spline of degree k is non-zero between k + 2 knots, so k + 1 of them are at any point.
        """
        if self.form != "bs":
            return 0
        value = constant_of(self._given["degree"]) if "degree" in self._given else 3
        return value + 1 if isinstance(value, int) and value >= 0 else 0

    @cached_property
    def categorical(self) -> CategoricalCall | None:
        """The arguments of C(...), if the expression is such a call."""
        if self.form != "C":
            return None
        if self.inner.stateful:
            raise SettingError(f"{self.text} makes levels of a spline or a scaled column: give it "
                               "a column of levels.")  # fmt: skip
        given = self._given
        contrast, reference = self._contrast(given.get("contrasts"))
        levels = tuple(_constants(given["levels"])) if "levels" in given else ()
        spans = constant_of(given["spans_intercept"]) if "spans_intercept" in given else True
        return CategoricalCall(contrast, reference, levels, bool(spans))

    @cached_property
    def inner(self) -> Expression:
        """The expression whose values may be levels: the argument of C(...), or this one."""
        return Expression(self.variables[0]) if self.form in OF_LEVELS else self

    @property
    def as_levels(self) -> str | None:
        """The column that is read as levels whatever it holds, as in C(year); None if none is."""
        return None if self.inner is self else self.inner.bare

    @property
    def tidy(self) -> str:
        """The text in normalized form, with Python's spacing."""
        return self.source(self.tree)

    def column_name(self, node: ast.Name) -> str:
        """Return the column of a name, which may be the placeholder of one in backticks."""
        match = PLACEHOLDER.fullmatch(node.id)
        if match and int(match[1]) < len(self._quoted):
            return self._quoted[int(match[1])]
        return node.id

    def source(self, node: ast.AST) -> str:
        """Return the text of a part of the expression, with its backticks."""
        text = ast.unparse(node).replace("`", "\\x60")  # which a text may hold
        return PLACEHOLDER.sub(lambda m: f"`{self._quoted[int(m[1])]}`", text)

    def _walk(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield all nodes except function names, contrasts, levels of C(...) and matrices."""
        yield node
        children: Iterable[ast.AST] = ast.iter_child_nodes(node)
        if isinstance(node, ast.Call):
            arguments = [*node.args, *node.keywords]
            # those after the first of C, rw and car are read by `categorical`, `ends` and `regions`
            children = arguments[:1] if function_of(node) in OF_LEVELS else arguments
        for child in children:
            yield from self._walk(child)

    def _check(self, node: ast.AST) -> None:
        """Refuse operations that the interpreter does not support."""
        operators = [getattr(node, "op", None), *getattr(node, "ops", ())]
        if isinstance(node, ast.Compare):
            for part in (node.left, *node.comparators):
                if isinstance(part, ast.BinOp) and type(part.op) in LOGICAL:
                    raise SettingError(
                        f"the formula holds {self.source(node)[:80]!r}, where & and | are computed "
                        "before the comparison: put brackets around every comparison, as in "
                        "(x > 1) & (z > 2)."
                    )
        if isinstance(node, ast.Call):
            self._check_call(node)
        if isinstance(node, ast.BoolOp) or isinstance(operators[0], ast.Not):
            raise SettingError(
                f"the formula holds {self.source(node)!r}: write & for and, | for or, ~ for not, "
                "with brackets around comparisons."
            )
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitXor):
            raise SettingError(
                f"the formula holds {self.source(node)[:80]!r}, where ^ is not a power: write "
                f"{self.source(node.left)[:40]} ** {self.source(node.right)[:40]}."
            )
        computed = {type(part) for part in (node, *operators)} <= COMPUTED
        if isinstance(node, ast.Constant):  # it may be bytes, or complex
            computed = isinstance(node.value, str | int | float | None)
        if not computed:
            raise SettingError(
                f"the formula holds {self.source(node)[:80]!r}, which formulas do not support: "
                "compute such a column first."
            )

    def _check_call(self, call: ast.Call) -> None:
        name = function_of(call)
        names = (*ROW_BY_ROW, *STATEFUL, *OF_LEVELS, "I", "Q")
        if name is None:
            raise SettingError(
                f"the formula holds {self.source(call)[:80]!r}, but formulas call functions by "
                "name only, as in log(x): compute such a column first."
            )
        if name not in (*names, "censoring"):
            if name in CALLED_ELSEWHERE:
                raise SettingError(
                    f"the formula calls {name}, which formulas do not support: write "
                    f"{CALLED_ELSEWHERE[name]}."
                )
            raise SettingError(
                f"the formula calls {name}, which formulas do not support{suggestion(name, names)}"
                f": they have functions that work row by row ({', '.join(names[:6])}, ..., bs, C), "
                "so compute other columns first."
            )
        if any(word.arg is None for word in call.keywords) or any(
            isinstance(argument, ast.Starred) for argument in call.args
        ):
            raise SettingError(f"the formula calls {name} with starred arguments: spell them out.")
        if not call.args:
            raise SettingError(f"the formula calls {name} without a column: name one.")
        if name in ARGUMENTS:
            self._check_arguments(name, call)
        least, most, takes = BY_PLACE.get(name, (1, len(call.args), ""))
        if not least <= len(call.args) <= most:
            raise SettingError(f"{self.text}: {name} takes {takes}.")
        if name in (*OF_LEVELS, *SMOOTHS) and call is not self.tree:
            raise SettingError(f"{self.text}: {name}(...) cannot be part of another expression.")
        if name == "Q" and not isinstance(call.args[0], ast.Constant):
            raise SettingError("Q(...) takes the name of a column in quotation marks.")

    def _check_arguments(self, name: str, call: ast.Call) -> None:
        """Refuse arguments that a function does not have."""
        text, known = self.source(call)[:80], KEYWORDS.get(name, ())
        for word in call.keywords:
            if word.arg not in known:
                takes = f"takes only {', '.join(known)} by name" if known else "takes none by name"
                raise SettingError(
                    f"the formula holds {text!r}, and {name} has no argument {word.arg}: it "
                    f"{takes}."
                )
        least, most = ARGUMENTS[name]
        count = len(call.args) + len(call.keywords)
        if not least <= count <= most:
            wanted = f"{least} to {most}" if least < most else str(least)
            raise SettingError(
                f"the formula holds {text!r}, which gives {name} {count} "
                f"argument{'s' * (count > 1)}, and it takes {wanted}: correct the call, or compute "
                "such a column first."
            )

    def _contrast(self, node: ast.AST | None) -> tuple[Contrast | None, Level | None]:
        """Return the contrast (None for treatment contrasts), and the latter's reference."""
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
            options = {str(word.arg): constant_of(word.value) for word in node.keywords}
            if len(node.args) > 1:
                raise SettingError(f"{self.text}: contr.{name} takes one argument without a name.")
            if node.args:
                options["base"] = constant_of(node.args[0])
        if name == "treatment":
            reference = options.pop("base", options.pop("reference", None))
            if options:
                raise SettingError(f"{self.text}: contr.treatment takes a reference level only.")
            return None, reference
        allowed = OPTIONS.get(name, set())
        if not set(options) <= allowed:
            takes = ", ".join(sorted(allowed)) or "no options"
            raise SettingError(f"{self.text}: contr.{name} takes {takes}.")
        return Contrast(name, {option: bool(value) for option, value in options.items()}), None


def function_of(call: ast.Call) -> str | None:
    """Return the name of the function called, without np: log for np.log."""
    match call.func:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=ast.Name(id="np"), attr=name):
            return name if name in ROW_BY_ROW else f"np.{name}"
    return None


def constant_of(node: ast.AST) -> Level:
    """Return a literal text or number of the formula."""
    negative = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)
    value = node.operand if negative else node  # type: ignore[attr-defined]
    if isinstance(value, ast.Constant) and isinstance(value.value, str | int | float):
        return -value.value if negative else value.value  # type: ignore[operator]
    raise SettingError(f"the formula holds {ast.unparse(node)!r} where it needs text or a number.")


def _constants(node: ast.AST) -> list[Level]:
    if not isinstance(node, ast.List | ast.Tuple):
        raise SettingError(f"levels must be a list such as ['a', 'b'], not {ast.unparse(node)!r}.")
    return [constant_of(entry) for entry in node.elts]
