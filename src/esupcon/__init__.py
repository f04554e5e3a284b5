"""Supervised contrastive classification: one objective for the embedding and its classifier."""

__version__ = "0.1.0"
