"""Models, from their [model] table to a module: start with `lm` (language models) or `seq2seq` (encoder-decoders)."""
