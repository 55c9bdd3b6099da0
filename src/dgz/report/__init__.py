"""Reports: records in; tables, figures and one self-contained page out."""

from dgz.report.card import write_card
from dgz.report.page import write_report
from dgz.report.paper import readme_table, update_readme, write_paper_report
from dgz.report.paper_runs import read_runs
from dgz.report.tables import HEADINGS, SCORES, oracle_rows, score_cells, score_rows

__all__ = [
    "HEADINGS",
    "SCORES",
    "oracle_rows",
    "read_runs",
    "readme_table",
    "score_cells",
    "score_rows",
    "update_readme",
    "write_card",
    "write_paper_report",
    "write_report",
]
