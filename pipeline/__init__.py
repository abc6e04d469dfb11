"""Raw text in any form → cleaned, shuffled blocks in WebDataset shards, vocabulary, manifest."""
