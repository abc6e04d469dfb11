"""The page that shows what became of the text: `report.html` with its funnel, charts and examples.

Hands on `Statistics` and one HTML file without scripts. Corpus text is hostile, so all of it passes
through `page.py: shown`. May import dedup and what is below it.
"""
