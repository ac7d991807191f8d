"""Steps, phases and collectives from a torch.profiler trace."""
