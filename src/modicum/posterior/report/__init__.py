"""The HTML report: what was fitted, whether to trust it, and the estimates."""

from modicum.posterior.report.page import GroupEffects, Reported, report_page

__all__ = ["GroupEffects", "Reported", "report_page"]
