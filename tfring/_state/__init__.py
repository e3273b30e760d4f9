"""The state of a training: the kinds and the shards of its variables."""
