"""Triton kernels of ScaleFold, one folder an operation. Imports torch and triton only.

``scalefold.ops`` is the only importer of this package.
"""
