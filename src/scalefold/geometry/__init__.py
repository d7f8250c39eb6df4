"""Rigid frames and superposition."""
