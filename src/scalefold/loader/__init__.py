"""Which samples in which order, and reading them ahead.

Everything here is a pure function of (run seed, draw index) or (run seed, step): the position of a
run in its data is its step number and nothing else.
"""
