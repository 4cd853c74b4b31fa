"""Formulas: from a text and a table to rows, and the encoding that makes more of them."""

from modicum.rows.formula.encoding import FormulaEncoding
from modicum.rows.formula.evaluation import NewLevels
from modicum.rows.formula.learning import Learned, learn
from modicum.rows.formula.parsing import Formula, GroupTerm, parse

__all__ = ["Formula", "FormulaEncoding", "GroupTerm", "Learned", "NewLevels", "learn", "parse"]
