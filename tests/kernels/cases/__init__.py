"""Configurations of each op's kernels, `compile_cases`, for the offline compilation."""
