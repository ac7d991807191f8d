"""Convert traces of torch.profiler and dumps of the flight recorder, from any source, to run directories."""
