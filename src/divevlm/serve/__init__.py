"""Pruning where models are served."""
