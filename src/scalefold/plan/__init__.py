"""How long a training takes on GPUs that one does not have yet: from records and a small model."""
