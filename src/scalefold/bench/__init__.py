"""Benchmarks: every number carries its device, commit, shapes and command."""
