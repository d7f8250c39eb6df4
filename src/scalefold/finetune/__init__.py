"""Fine-tuning on one's own structures: what the workflow needs for it, made from a folder.

This package writes a list of chains and a configuration file. All else is the workflow's.
"""
