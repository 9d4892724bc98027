"""Reproducible measurements, each beside its peers in the same run."""
