"""The HTML report: what was fitted, whether to trust it, and the estimates."""

from modicum.posterior.report.contents import Reportable, contents_of
from modicum.posterior.report.page import report_page

__all__ = ["Reportable", "contents_of", "report_page"]
