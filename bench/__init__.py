"""Reproducible measurements of Ottla and its peers in the same run."""
