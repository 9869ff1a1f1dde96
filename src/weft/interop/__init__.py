"""Import and export: Hugging Face models and tokenizers, and ARPA files of n-gram models."""
