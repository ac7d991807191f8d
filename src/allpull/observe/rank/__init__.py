"""Where a rank begins: of the trainer, of a user's command, or started by mpirun."""
