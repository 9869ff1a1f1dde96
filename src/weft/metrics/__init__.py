"""Additive statistics of items, and scores with confidence intervals and signatures."""
