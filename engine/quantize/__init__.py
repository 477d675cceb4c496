"""Making a model's weights smaller: what to learn from its activations, and the checkpoint that is written."""
