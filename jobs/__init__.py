"""A run config → corpus, training, checkpoints, bundles, registry versions; the command."""
