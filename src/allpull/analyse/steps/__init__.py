"""Steps of a run: as arrays of step × rank, which of them are steady, their phases and their throughput."""
