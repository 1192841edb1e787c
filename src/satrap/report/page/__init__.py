"""The report as one HTML page: numbers (`run.py`), drawings (`svg.py`), page (`html.py`)."""

from satrap.report.page.html import page
from satrap.report.page.run import LabelCurves, RunReport, Scores, TableSize

__all__ = ["LabelCurves", "RunReport", "Scores", "TableSize", "page"]
