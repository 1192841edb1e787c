"""The report as one HTML page: its numbers (`run.py`), drawings (`svg.py`), the page (`html.py`)."""

from satrap.report.page.html import page
from satrap.report.page.run import LabelCurves, RunReport, Scores, TableSize

__all__ = ["LabelCurves", "RunReport", "Scores", "TableSize", "page"]
