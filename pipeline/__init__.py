"""Raw text in any form → cleaned, shuffled blocks in WebDataset shards, a vocabulary, a manifest."""
