"""A fit on one page: what was fitted, whether to trust it, and what it says."""

from modicum.posterior.report.page import Reported, report_page

__all__ = ["Reported", "report_page"]
