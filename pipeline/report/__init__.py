"""The page that shows what became of the text: `report.html` with its funnel, charts and examples.

Hands on `Statistics` and one HTML file without scripts. Corpus text is hostile, and the
templates escape all of it. May import dedup and what is below it.
"""
