"""The funnel: how many documents, sentences and words each rule removed, from read to kept.

Every stage counts what it drops by rule, and the driver adds the counts up. A build whose counts do
not add up has a bug, and says so.
"""

Counts = dict[str, tuple[int, int, int]]
"""Rule → (documents, sentences, words)."""
ZERO = (0, 0, 0)

READ, KEPT = "read", "kept"
BROKEN = "broken"
"""The rule for records that cannot be read; quarantine.jsonl has the reasons."""
DECONTAMINATE = "decontaminate"
"""The rule for documents that share an n-gram with an evaluation file."""
WEIGHT = "weight"
"""The rule for documents left out because their source has a weight below 1."""


class Funnel:
    """Counts by rule, in the order of first use."""

    def __init__(self) -> None:
        self.counts: Counts = {}

    def add(self, rule: str, documents: int, sentences: int, words: int) -> None:
        """Count what a rule removed."""
        before = self.counts.get(rule, ZERO)
        self.counts[rule] = (before[0] + documents, before[1] + sentences, before[2] + words)

    def merge(self, counts: Counts) -> None:
        """Add the counts of another funnel."""
        for rule, row in counts.items():
            self.add(rule, *row)

    def missing(self) -> list[int]:
        """Documents, sentences and words neither kept nor dropped; zeros if all is well."""
        read = self.counts.get(READ, ZERO)
        others = [counts for rule, counts in self.counts.items() if rule != READ]
        return [read[place] - sum(counts[place] for counts in others) for place in range(3)]
