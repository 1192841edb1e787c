"""The report as one HTML page: numbers (`run.py`), drawings (`svg.py`), page (`html.py`)."""

from satrap.tools.report_page.html import page
from satrap.tools.report_page.run import LabelCurves, RunReport, Scores, TableSize

__all__ = ["LabelCurves", "RunReport", "Scores", "TableSize", "page"]
