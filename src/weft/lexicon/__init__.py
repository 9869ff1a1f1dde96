"""Bilingual lexicons: word vectors of two languages, mapped into one space."""
