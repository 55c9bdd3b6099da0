"""Reports: records in; tables, figures and one self-contained page out."""

from dgz.report.page import write_report
from dgz.report.tables import HEADINGS, SCORES, oracle_rows, score_rows

__all__ = ["HEADINGS", "SCORES", "oracle_rows", "score_rows", "write_report"]
