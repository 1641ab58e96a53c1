"""What is asked about programs and tensors: explore, compare, list, let go."""
