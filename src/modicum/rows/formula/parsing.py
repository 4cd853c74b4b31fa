"""Parses a formula into its parts: outcome, terms, offsets, group terms.

Terms are expanded as in R: ``a*b`` is ``a + b + a:b``, ``a/b`` is ``a + a:b``, and ``(a + b)^2``
has all interactions of two. ``offset(...)``, group terms such as ``(1 | g)`` and the outcome, which
may be any expression, are taken out first.
"""

from __future__ import annotations

import keyword
import re
import unicodedata
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from modicum.errors import SettingError
from modicum.rows.formula.expressions import NATURAL, Expression
from modicum.rows.formula.smooths import SMOOTHS

FIELD = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]*)\s*\((.*)\)\s*", re.DOTALL)
OF_CLASSES = "cs"  # the predictor of the terms in ``cs(...)``, which each class has for itself
COUNT = "count of "  # precedes the name of a class in the name of the field of its counts
DEEPEST = 50  # brackets inside each other
OPEN, CLOSE = "([{", ")]}"
OPERATORS = {"and", "or", "not", "in", "None", "True", "False"}  # keywords that formulas may hold
# Keywords that no expression of a formula holds, such as class; they are common column names.
STATEMENTS = set(keyword.kwlist) - OPERATORS
COMBINING = "\u0300-\u036f"  # accents that are characters of their own
QUOTED_OR_WORD = re.compile(rf"`[^`]*`|'[^']*'|\"[^\"]*\"|[\w{COMBINING}]+")
MOST_TERMS = 10_000  # that a product of sums, such as (a + b + c)**2, may expand to
Factors: TypeAlias = tuple[Expression, ...]  # of a term
WEIGHTS = "pass weights={0!r} to mo.fit, or --weight {0} on the command line"
# Fields of rows that are no further fields of an outcome, and how a formula's rows get them.
ELSEWHERE = {
    "weight": WEIGHTS,
    "weights": WEIGHTS,
    "offset": "write offset({0}) among the terms",
    "x": "name the columns after ~",
    "y": "the outcome is what stands before |",
}


# Calls after | that fill several fields, by the names of their arguments, as in brms.
ARGUMENTS_OF = {"cens": ("cens", "y2"), "trunc": ("lb", "ub"), "se": ("se", "sigma")}
EXAMPLES = {"cens": "cens(c, y2)", "trunc": "trunc(lb=0, ub=9)", "se": "se(s)"}
NAMED_ARGUMENT = re.compile(r"\s*(\w+)\s*=(?!=)(.*)", re.DOTALL)


@dataclass(frozen=True)
class ParsedGroup:
    """Effects that vary between the levels of a grouping factor: ``(1 + dose | ward)``.

    Parameters
    ----------
    group
        Columns whose levels, or combinations of levels, are the groups: ("ward",), or ("g", "h")
        for h within g.
    intercept
        Whether the intercept varies between groups.
    slopes
        The terms whose coefficients vary, each as the texts of its factors.
    correlated
        Whether the effects of a group are correlated (``|``) or not (``||``).
    parameter
        The parameter whose predictor they enter; empty: the mean's.

    Examples
    --------
    >>> str(parse("late ~ dist + (hour * origin || carrier/tailnum)").groups[1])
    '(1 + hour + origin + hour:origin || carrier:tailnum)'
    """

    group: tuple[str, ...]
    intercept: bool = True
    slopes: tuple[tuple[str, ...], ...] = ()
    correlated: bool = True
    parameter: str = ""

    @property
    def field(self) -> str:
        """The name of the grouping factor: its column, or several joined by colons."""
        return ":".join(self.group)

    def __str__(self) -> str:
        bar = "|" if self.correlated else "||"
        effects = [str(int(self.intercept)), *(":".join(slope) for slope in self.slopes)]
        return f"({' + '.join(effects)} {bar} {self.field})"


@dataclass(frozen=True)
class ParsedPredictor:
    """The common terms of a parameter: ``scale ~ dose``; that of the mean has no name."""

    parameter: str
    terms: tuple[Factors, ...]
    intercept: bool


@dataclass(frozen=True)
class Formula:
    """A parsed formula.

    Parameters
    ----------
    text
        The text of the formula.
    outcome
        The left-hand side, if there is one.
    predictors
        The common terms of the mean, and of other parameters.
    offsets
        Expressions added to the linear predictor.
    groups
        Group terms, of all predictors.
    fields
        Further fields of a row: ``wins | trials(games)`` has the field "trials".
    """

    text: str
    outcome: Expression | None
    predictors: tuple[ParsedPredictor, ...]
    offsets: tuple[Expression, ...] = ()
    groups: tuple[ParsedGroup, ...] = ()
    fields: tuple[tuple[str, Expression], ...] = ()

    @property
    def terms(self) -> tuple[Factors, ...]:
        """The factors of the terms of all predictors."""
        return tuple(term for predictor in self.predictors for term in predictor.terms)

    @property
    def expressions(self) -> tuple[Expression, ...]:
        """Every expression computed per row, including the outcome."""
        outcome = () if self.outcome is None else (self.outcome,)
        return (*self.factors, *self.offsets, *(e for _, e in self.fields), *outcome)

    @property
    def factors(self) -> tuple[Expression, ...]:
        """The factors of all terms, then those that only vary by group."""
        slopes = [slope for group in self.groups for slope in group.slopes]
        varying = [Expression(text) for slope in slopes for text in slope]
        return tuple(dict.fromkeys([*(f for term in self.terms for f in term), *varying]))


def parse(text: str, columns: Sequence[str] = (), taken: Collection[str] = ()) -> Formula:
    """Parse a formula.

    Parameters
    ----------
    text
        Such as ``"late ~ carrier + bs(hour, df=6) + dist:origin + offset(log_n)"``; formulas of
        other parameters follow after semicolons: ``"delay ~ hour; scale ~ carrier"``.
    columns
        Columns of the table. ``.`` on the right-hand side stands for those without another role:
        all but the columns of the outcome, its further fields, offsets and groups, and `taken`.
    taken
        Columns with a role that the formula does not show, such as weights.

    Examples
    --------
    >>> formula = parse("np.log(y) ~ 0 + dose * ward + offset(base)")
    >>> formula.outcome.text, formula.predictors[0].intercept, [e.text for e in formula.offsets]
    ('np.log(y)', False, ['base'])
    >>> [":".join(factor.text for factor in term) for term in formula.terms]
    ['dose', 'ward', 'dose:ward']
    >>> [each.parameter for each in parse("y ~ dose; scale ~ ward").predictors]
    ['', 'scale']
    """
    text = _in_backticks(text, columns)
    bare = re.sub(r"""`[^`]*`|"[^"]*"|'[^']*'""", "", text)
    for name in columns:
        if re.fullmatch(r"\w+( +\w+)+", name) and re.search(rf"\b{name}\b", bare):
            raise SettingError(
                f"the formula {text!r} has a column whose name holds a space: write `{name}` in "
                f"backticks, or Q('{name}')."
            )
    (left, right), *further = [_sides(part) for _, part in _split(text, ";")]
    outcome, fields = _outcome_side(left)
    common, offsets, groups, of_classes = _terms_side(right)
    common_terms = {"": common}
    for left, right in further:
        parameter = left.strip()
        if not parameter.isidentifier():
            raise SettingError(
                f"the formula {text!r} has {parameter!r} before a further ~, where a parameter of "
                "the family is expected, as in 'y ~ a; scale ~ b'."
            )
        if parameter in common_terms:
            raise SettingError(
                f"the formula {text!r} has a parameter twice: keep one of its formulas."
            )
        common_terms[parameter], added, its_groups, its_classes = _terms_side(right)
        if added or its_classes:
            noun = "an offset" if added else f"{OF_CLASSES}(...)"
            raise SettingError(
                f"the formula of {parameter!r} has {noun}, and only that of the outcome can: "
                "leave it out."
            )
        groups += [replace(group, parameter=parameter) for group in its_groups]
    parts = [*([outcome] if outcome else []), *(e for _, e in fields), *offsets]
    roles = {name for part in parts for name in part.names} | set(taken)
    roles.update(name for group in groups for name in group.group)
    dot = [name for name in columns if name not in roles]
    if of_classes:
        terms, _ = _terms(of_classes, dot)
        dot = [name for name in dot if all(name not in f.names for term in terms for f in term)]
        common_terms[OF_CLASSES] = of_classes
    predictors = tuple(ParsedPredictor(k, *_terms(v, dot)) for k, v in common_terms.items())
    formula = Formula(text, outcome, predictors, tuple(offsets), tuple(groups), fields)
    for predictor in predictors:
        _check_smooths(predictor, groups)
    if of_classes:
        _check_classes(predictors[0].terms, predictors[-1].terms)
    if outcome is not None:
        _refuse_outcome_explained(outcome, formula)
    return formula


def _refuse_outcome_explained(outcome: Expression, formula: Formula) -> None:
    """Refuse terms and groups that determine the outcome."""
    for group in formula.groups:
        if outcome.names and set(outcome.names) <= set(group.group):
            raise SettingError(
                f"the outcome {outcome.text!r} is determined by {group.field!r}, so the "
                f"group term {group} leaves nothing to explain: group by another column."
            )
    if outcome.tidy in {factor.tidy for term in formula.terms for factor in term}:
        raise SettingError(
            f"the outcome {outcome.text!r} is also a term of {formula.text!r}, which leaves "
            "nothing to explain: remove it after ~."
        )


def _check_classes(common: Sequence[Factors], of_classes: Sequence[Factors]) -> None:
    """Refuse terms of classes that are none, or that are also terms of the mean."""
    if not of_classes:
        raise SettingError(
            f"{OF_CLASSES}(...) holds no column, and the cutpoints are the intercepts of the "
            f"classes already: name a column, as in {OF_CLASSES}(dose)."
        )
    known = set(map(frozenset, common))
    for term in of_classes:
        if frozenset(term) in known:
            name = ":".join(factor.label for factor in term)
            raise SettingError(
                f"{name} stands both in {OF_CLASSES}(...) and outside it, so that its effect on "
                f"all classes would count twice: leave one of them out."
            )


def _check_smooths(predictor: ParsedPredictor, groups: Sequence[ParsedGroup]) -> None:
    """Refuse smooths that are part of a term, and smooths by levels without their means."""
    own = [group for group in groups if group.parameter == predictor.parameter]
    slopes = [tuple(map(Expression, slope)) for group in own for slope in group.slopes]
    terms = predictor.terms
    labels = [factor.label for term in terms for factor in term if factor.is_pooled]
    for label in {label for label in labels if labels.count(label) > 1}:
        raise SettingError(f"the formula has the smooth {label} twice: leave one of them out.")
    for term in [*terms, *slopes]:
        if term in slopes and any(factor.form == "mo" for factor in term):
            raise SettingError("a monotonic effect, mo(...), cannot vary by group: leave it out.")
        smooth = next((factor for factor in term if factor.is_pooled), None)
        if smooth is None:
            continue
        if len(term) > 1 or term in slopes:
            raise SettingError(
                f"the smooth {smooth.text} must be a term of its own: write s(x, by=f) for one "
                "curve for each level of f, and te(x, z) for a surface."
                if smooth.form in SMOOTHS
                else f"{smooth.text} must be a term of its own: leave the interaction out."
            )
        means = {t[0].inner.bare for t in terms if len(t) == 1} | {g.group[-1] for g in own}
        if smooth.by is not None and smooth.by not in means:
            raise SettingError(
                f"the curves of {smooth.text} are differences from the mean of each level, so the "
                f"formula must have the means too: add {smooth.by}, or (1 | {smooth.by})."
            )


def _in_backticks(text: str, columns: Sequence[str]) -> str:
    """Put names in backticks that Python would not read as those of columns.

    These are keywords, names with dots, and names that Python normalizes, as it makes a Greek
    letter of the micro sign. A name that is that of one column after normalization is meant as
    this column's.
    """
    alike: dict[str, list[str]] = {}
    for name in columns:
        alike.setdefault(unicodedata.normalize("NFKC", name), []).append(name)

    def replaced(match: re.Match[str]) -> str:
        word = match[0]
        names = alike.get(unicodedata.normalize("NFKC", word), [])
        name = names[0] if len(names) == 1 else word
        odd = name in names and not unicodedata.is_normalized("NFKC", name)
        odd = odd or ("." in name and word in columns)
        return f"`{name}`" if word[0] not in "`'\"" and (odd or name in STATEMENTS) else word

    dotted = [re.escape(name) for name in columns if re.fullmatch(r"\w+([.]\w+)+", name)]
    longest_first = sorted(dotted, key=len, reverse=True)
    whole = [rf"(?<![\w.])({'|'.join(longest_first)})(?![\w.(])"] * bool(dotted)
    return re.sub("|".join([*whole, QUOTED_OR_WORD.pattern]), replaced, text)


def _sides(text: str) -> tuple[str, str]:
    """Split a formula at ~; refuse one that has no such sign, or no complete terms after it."""
    sides = [part for _, part in _split(text, "~")]
    if re.match(r"\s*(bf|brmsformula|mvbf)\s*\(", text):
        raise SettingError(
            f"the formula {text.strip()!r} calls {text.strip().partition('(')[0]}: pass the "
            "formulas of an outcome as ('y ~ x', 'scale ~ z')."
        )
    if len(sides) != 2:
        raise SettingError(
            f"the formula {text!r} must have one ~ between the outcome and the terms, as in "
            "'y ~ a + b'."
        )
    left, right = sides
    if not right.strip():
        raise SettingError(f"the formula {text!r} has no terms after ~: name some, or write 1.")
    if right.rstrip()[-1] in "+-":
        raise SettingError(
            f"the formula {text!r} ends with {right.rstrip()[-1]}: write the term that is "
            "missing there, or leave the sign out."
        )
    return left, right


def _terms_side(text: str) -> tuple[str, list[Expression], list[ParsedGroup], str]:
    """Separate what follows ~: the text of common terms, offsets, group terms, terms of classes."""
    offsets: list[Expression] = []
    groups: list[ParsedGroup] = []
    common: list[str] = []
    of_classes: list[str] = []
    for sign, piece in _split(text, "+-"):
        call = FIELD.fullmatch(piece)
        inside = _inside_brackets(piece)
        its_classes = _inside_brackets(piece.strip().removeprefix(OF_CLASSES))
        if re.search(rf"\b{OF_CLASSES}\s*\(", piece):
            _require_added(sign, piece)
            if its_classes is None or inside is not None or "|" in _outside_calls(its_classes):
                raise SettingError(
                    f"the formula holds {piece.strip()!r}: {OF_CLASSES}(...) must be a term of its "
                    f"own, which holds interactions, as in {OF_CLASSES}(x * f), and no groups."
                )
            if len(list(_split(its_classes, ",="))) > 1:
                raise SettingError(
                    f"{piece.strip()} cannot be read: {OF_CLASSES}(x) is an effect of x that "
                    f"differs between classes; a natural spline is {NATURAL}."
                )
            of_classes.append(f"+ ({its_classes})")
        elif call and call[1] == "offset":
            _require_added(sign, piece)
            offsets.append(Expression(call[2]))
        elif inside is not None and (parts := _split_at_bar(inside)) is not None:
            _require_added(sign, piece)
            groups += _group_terms(inside, *parts)
        else:
            if "|" in piece and re.search(r"[^&|]\|", _outside_calls(piece)):
                raise SettingError(
                    f"the formula holds {piece.strip()!r}: a group term must be separate and in "
                    "brackets, as in 'y ~ x + (1 | g)'."
                )
            if re.search(r"\boffset\s*\(", piece):
                raise SettingError(
                    f"the formula holds {piece.strip()!r}: an offset must be a separate term, as "
                    "in 'y ~ x + offset(z)'."
                )
            common.append(f"{sign or '+'} {piece}")
    return " ".join(common), offsets, groups, " ".join(of_classes)


def _outcome_side(text: str) -> tuple[Expression | None, tuple[tuple[str, Expression], ...]]:
    """Parse the outcome and further fields: ``y``, ``late > 15``, ``wins | trials(games)``."""
    if not text.strip():
        return None, ()
    parts = [part for _, part in _split(text, "|")]
    counts = FIELD.fullmatch(parts[0])
    if counts is not None and counts[1] == "cbind":
        return _counts_of(counts[2], parts[0].strip(), len(parts) > 1)
    outcome = Expression(Expression(parts[0].strip()).tidy)
    if len(parts) == 1:
        return outcome, ()
    fields: list[tuple[str, Expression]] = []
    for sign, piece in _split("|".join(parts[1:]), "+"):
        call = FIELD.fullmatch(piece)
        if call is None or len(parts) > 2 or sign == "-":
            raise SettingError(
                f"the outcome {text.strip()!r} cannot be read: write further fields after |, as in "
                "'wins | trials(games)', or put | in brackets if it means or."
            )
        if call[1] in ELSEWHERE or call[1] in dict(fields):
            remedy = ELSEWHERE.get(call[1], "give it once").format(call[2].strip())
            raise SettingError(
                f"the outcome {text.strip()!r} cannot have {'another' if dict(fields) else 'a'} "
                f"field {call[1]!r} after |: {remedy}."
            )
        if not call[2].strip():
            raise SettingError(
                f"{piece.strip()} after | names no column: name one, or leave it out (rows without "
                "an outcome are left out by missing='drop')."
            )
        fields += _fields_of(call[1], call[2])
    return outcome, tuple(fields)


def _counts_of(
    inside: str, call: str, has_fields: bool
) -> tuple[Expression, tuple[tuple[str, Expression], ...]]:
    """Return the count of the first class, that of all, and with three classes those of others.

    Two counts, of successes and failures, are ``wins | trials(wins + losses)``.
    """
    texts = [text.strip() for _, text in _split(inside, ",")]
    if has_fields or len(texts) < 2 or not all(texts):
        raise SettingError(
            f"the outcome {call!r} must be two or more counts, and nothing after |: their sum is "
            "the number of trials."
        )
    first, *others = [Expression(Expression(text).tidy) for text in texts]
    total = ("trials", Expression(" + ".join(f"({text})" for text in texts)))
    further = [(f"{COUNT}{other.label}", other) for other in others]
    return first, (total, *(further if len(texts) > 2 else ()))


def _fields_of(name: str, inside: str) -> list[tuple[str, Expression]]:
    """Return the fields that a call after | fills: ``cens(c, y2)``, ``trunc(lb=0)``, ``se(s)``.

    An error that comes on top of the noise, ``se(s, sigma=True)``, is a field of its own.
    """
    names = ARGUMENTS_OF.get(name)
    if names is None:
        return [(name, Expression(inside))]
    given: dict[str, str] = {}
    for place, (_, text) in enumerate(_split(inside, ",")):
        named = NAMED_ARGUMENT.fullmatch(text)
        key = named[1] if named else (*names, "")[min(place, len(names))]
        if key not in names or key in given or not (named[2] if named else text).strip():
            raise SettingError(
                f"{name}({inside.strip()}) cannot be read: its arguments are {names[0]} and "
                f"{names[1]}, as in 'y | {EXAMPLES[name]} ~ x'."
            )
        given[key] = (named[2] if named else text).strip()
    added = given.pop("sigma", "False")
    if added not in ("False", "True", "FALSE", "TRUE") or ("se" in names and "se" not in given):
        raise SettingError("sigma in se(s, sigma=True) must be True or False, after a column s.")
    if "cens" in given:  # codes, or their names
        given["cens"] = f"censoring({given['cens']})"
    if added.lower() == "true":
        given = {"added_se": given["se"]}
    return [(key, Expression(text)) for key, text in given.items()]


def _terms(text: str, others: Sequence[str]) -> tuple[tuple[Factors, ...], bool]:
    """Parse common terms, in which . stands for the other columns.

    Returns
    -------
    terms
        The factors of each term; terms of few factors come first.
    intercept
        Whether there is an intercept.
    """
    if "%in%" in _outside_calls(text):  # R leaves the main effect out, others do not
        raise SettingError(
            f"%in% in {text.strip(' +')!r} is ambiguous: write a:b for the interaction alone, or "
            "a/b for a and b within a."
        )
    call = re.search(r"\b(\w+::+|`?as`?[.])\w+\s*(?=\()", text)
    if call is not None:
        raise SettingError(
            f"the formula calls {call[0].replace('`', '')}, and functions are called by their "
            "names alone: as.factor(k) is C(k), and splines::bs(x) is bs(x)."
        )
    terms = _expanded(f"1 + {text}" if text.strip() else "1", others)
    return tuple(sorted(filter(None, terms), key=len)), () in terms


def _expanded(text: str, others: Sequence[str]) -> list[Factors]:
    """Return the factors of each term of a sum; the intercept has none.

    Examples
    --------
    >>> [":".join(factor.text for factor in term) for term in _expanded("a/(b + c) - a:c", ())]
    ['a', 'a:b']
    """
    inside = _inside_brackets(text)
    if inside is not None:
        return _expanded(inside, others)
    for at in [at for at, depth, _ in _letters(text) if depth == 0 and text[at : at + 2] == "**"]:
        text = f"{text[:at]}^ {text[at + 2 :]}"
    for signs in ("+-", "*/", ":"):
        parts = list(_split(text, signs))
        if len(parts) > 1 or parts[0][0]:
            break
    else:
        return _factor(text.strip(), others)
    terms: list[Factors] = []
    for sign, part in parts:
        if signs == "+-" and part.strip() == "0":  # no intercept
            sign, part = "+" if sign == "-" else "-", "1"
        terms = _combined(terms, sign, _expanded(part, others), text)
    return terms


def _combined(left: list[Factors], sign: str, right: list[Factors], text: str) -> list[Factors]:
    """Add terms, take some away, multiply them (:, or *, which keeps both), or nest them (/)."""
    if sign == "-":
        gone = set(map(frozenset, right))
        return [term for term in left if frozenset(term) not in gone]
    outer = [tuple(factor for term in left for factor in term)] if sign == "/" else left
    if sign in ("*", "/", ":") and len(outer) * len(right) > MOST_TERMS:
        raise SettingError(
            f"{text.strip()[:80]!r} in the formula expands to too many terms (the limit is "
            f"{MOST_TERMS:,}): write out the interactions you need."
        )
    products = [(*a, *b) for a in outer for b in right] if sign in ("*", "/", ":") else []
    alone = {":": [], "/": left}.get(sign, [*left, *right])
    distinct: dict[frozenset[Expression], Factors] = {}
    for term in (*alone, *products):
        distinct.setdefault(frozenset(term), tuple(dict.fromkeys(term)))
    return list(distinct.values())


def _factor(text: str, others: Sequence[str]) -> list[Factors]:
    """Return the terms of a name, a call, code in braces, or a power, which has interactions."""
    base, *powers = [part.strip() for _, part in _split(text, "^")]
    if powers and _inside_brackets(base) is None:
        name = re.sub(r"\(.*\)", "(...)", base, flags=re.DOTALL)
        inside = "..." if name == "I(...)" else name
        raise SettingError(
            f"{name}^{powers[0]} in a formula means {name} and its interactions with itself, which "
            f"is just {name}; write I({inside} ** {powers[0]}) for the power of a column."
        )
    if powers and powers[0].isdecimal() and len(powers) == 1:
        terms = first = _expanded(base, others)
        most = len({factor for term in first for factor in term})  # factors of a product
        for _ in range(min(int(powers[0][:6]), most) - 1):
            terms = _combined(terms, ":", first, text)
        return terms
    if text in (".", "1"):
        return [(Expression.column(name),) for name in others] if text == "." else [()]
    if re.fullmatch(r"""[0-9.]+|'[^']*'|"[^"]*\"""", text):
        raise SettingError(
            f"the formula has {text} as a term or as a factor of one, which at most rescales its "
            "coefficient: leave the number out."
        )
    if re.fullmatch(r"[\w.]+", text):
        return [(Expression.column(text),)]
    if re.fullmatch(r"\{.*\}", text, re.DOTALL):
        return [(Expression(Expression(text[1:-1].strip()).tidy),)]
    named = re.fullmatch(r"`[^`]*`|[\w.]+\s*\(.*\)", text, re.DOTALL)
    factor = Expression(text) if named else None
    if factor is not None and factor.bare is not None:
        return [(Expression.column(factor.bare),)]
    if factor is not None and factor.call is not None:
        return [(Expression(factor.tidy),)]
    raise SettingError(
        f"the formula's terms cannot be read at {text[:80]!r}: separate terms by +, interactions "
        "by : or *, and put computed columns into I(...)."
    )


def _group_terms(inside: str, left: str, correlated: bool, right: str) -> list[ParsedGroup]:
    """Parse the group terms inside brackets, split at the bar; g/h means g, and h within g."""
    groups = [[part.strip() for _, part in _split(p, ":")] for _, p in _split(right, "/")]
    names = [name for group in groups for name in group]
    if not names or not all(names):
        raise SettingError(f"the group term ({inside.strip()}) names no column after |: add one.")
    columns = [[_column(name, inside) for name in group] for group in groups]
    if any(piece.strip() == "." for _, piece in _split(left, "+-*:/")):
        raise SettingError(
            f"the group term ({inside.strip()}) has '.' before |, but '.' means all columns only "
            "among the common terms: name the slopes that vary."
        )
    effects, intercept = _terms(left, ())
    slopes = tuple(tuple(f.text for f in term) for term in effects)
    if any([f.label for f in term] == ["1"] for term in effects):
        raise SettingError(
            f"the group term ({inside.strip()}) has the slope of a column called '1', and 1 is the "
            "intercept there: rename the column."
        )
    if not (intercept or slopes) or not left.strip():
        raise SettingError(f"the group term ({inside.strip()}) has no effects before |: add 1.")
    terms: list[ParsedGroup] = []
    outer: tuple[str, ...] = ()
    for group in columns:
        outer = (*outer, *group)
        terms.append(ParsedGroup(outer, intercept, slopes, correlated))
    return terms


def _column(name: str, inside: str) -> str:
    column = Expression(name).bare
    if column is None:
        raise SettingError(
            f"the group term ({inside.strip()}) must name columns after |, not {name!r}."
        )
    return column


def _require_added(sign: str, piece: str) -> None:
    if sign == "-":
        raise SettingError(f"the formula subtracts {piece.strip()}: it can only be added.")


def _inside_brackets(piece: str) -> str | None:
    """Return the text inside the brackets that enclose the whole piece, if any do."""
    piece = piece.strip()
    if not piece.startswith("(") or not piece.endswith(")"):
        return None
    outside = [at for at, depth, _ in _letters(piece) if depth == 0 and at > 0]
    return piece[1:-1] if not outside or outside == [len(piece) - 1] else None


def _outside_calls(piece: str) -> str:
    """Return the piece without function arguments, in which | means or."""
    outside, calls, before = "", 0, ""
    for at, _, letter in _letters(piece):
        if calls:
            calls += (letter in OPEN) - (letter in CLOSE)
        elif letter == "{" or (letter == "(" and (before.isalnum() or before == "_")):
            calls = 1
        else:
            outside += letter
        before = piece[at]
    return outside


def _split_at_bar(inside: str) -> tuple[str, bool, str] | None:
    """Split at the bar, if any, into effects, whether they are correlated, and groups."""
    at = [i for i, depth, letter in _letters(inside) if depth == 0 and letter == "|"]
    if not at:
        return None
    double = len(at) == 2 and at[1] == at[0] + 1
    if len(at) > 1 and not double:
        raise SettingError(
            f"the group term ({inside.strip()}) has more than one |: keep one (effects on several "
            "parameters or outcomes, as in brms's (1 |p| g), are not correlated)."
        )
    return inside[: at[0]], not double, inside[at[-1] + 1 :]


def _split(text: str, signs: str) -> Iterator[tuple[str, str]]:
    """Split at signs outside brackets and quotes; yield each part with the sign before it."""
    start, sign, empty = 0, "", True
    for at, depth, letter in _letters(text):
        if depth == 0 and letter in signs:
            if text[start:at].strip() or signs not in ("+-", "+"):
                yield sign, text[start:at]
                empty = False
            start, sign = at + 1, letter
    if text[start:].strip() or empty or signs not in ("+-", "+"):
        yield sign, text[start:]


def _letters(text: str) -> Iterator[tuple[int, int, str]]:
    """Yield every character outside quotes, with its index and bracket depth."""
    depth, quote = 0, ""
    for at, letter in enumerate(text):
        if depth > DEEPEST:
            raise SettingError(f"the formula has more than {DEEPEST} brackets inside each other.")
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"`":
            quote = letter
        else:
            if letter in CLOSE:
                depth -= 1
            yield at, depth, letter
            if letter in OPEN:
                depth += 1
    if depth != 0 or quote:
        raise SettingError(
            f"the formula {text.strip()!r} has a bracket or quote that is not closed."
        )
