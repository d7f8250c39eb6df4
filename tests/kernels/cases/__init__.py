"""Configurations of each op's kernels, `<op>.compile_cases`, for the offline compilation."""
