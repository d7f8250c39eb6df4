"""The ops, a folder each."""
