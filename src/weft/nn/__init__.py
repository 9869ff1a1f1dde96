"""Layers and output heads as torch modules. They take no configuration objects: `weft.models.build` wires them."""
