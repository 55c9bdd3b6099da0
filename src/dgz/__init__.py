"""Generalized zero-shot learning: the public names of the package, and nothing else."""

__version__ = "0.1.0"
