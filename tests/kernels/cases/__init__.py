"""Configurations of each op's kernels, `compile_cases` of each module, for the offline compilation."""
