"""The commands of `weft`, one file each; what they share stands in `weft.cli`."""
