"""Addable statistics, and scores with an interval and a signature."""
