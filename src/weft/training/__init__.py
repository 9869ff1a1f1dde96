"""Training of neural networks: `loop` is the training loop, `objective` its interface to the tasks."""
