"""Collectives of a run: matched between ranks, split into wait and transfer, counted, and their rates."""
