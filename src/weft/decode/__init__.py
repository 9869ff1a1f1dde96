"""Search and sampling over the step protocol: they never ask what the model is."""
