"""The arithmetic of a step: precision, compilation, CUDA graphs."""
