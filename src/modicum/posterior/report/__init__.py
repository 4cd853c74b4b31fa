"""A fit on one page: what was fitted, whether to trust it, and what it says."""

from modicum.posterior.report.page import GroupEffects, Reported, report_page

__all__ = ["GroupEffects", "Reported", "report_page"]
