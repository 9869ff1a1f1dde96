"""Beam search and sampling with any model that implements `IncrementalModel`, independent of its architecture."""
