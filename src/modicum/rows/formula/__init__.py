"""Formulas: parse them, learn an encoding from a table, and encode tables as rows."""

from modicum.rows.formula.encoding import FormulaEncoding, NewLevels
from modicum.rows.formula.learning import learn
from modicum.rows.formula.parsing import Formula, ParsedGroup, parse

__all__ = ["Formula", "FormulaEncoding", "NewLevels", "ParsedGroup", "learn", "parse"]
