"""Where things are: the repository, its pages, and the data beside it that is not part of it."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
INFRA = ROOT / "infra"
SHARED = Path(os.environ.get("ELMWRIGHT_SHARED", ROOT.parent / "shared"))
"""A folder of data sets and reference outputs; tests that need one skip where it is absent."""
GOLDEN = SHARED / "golden" / "allennlp"
"""Models and the vectors that AllenNLP computes with them."""
