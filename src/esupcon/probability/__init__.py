"""Posterior probabilities from stored logits: NumPy only, no torch."""
