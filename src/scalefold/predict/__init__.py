"""Structures from sequences: prediction by one or several sets of weights."""
