"""The stages of a run, in their order: the names that people type and that files hold."""

STAGES = ("corpus", "train", "export", "publish")
