"""The state of a training: each variable's kind, and who has which part."""
