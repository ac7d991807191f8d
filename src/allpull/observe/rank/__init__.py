"""The start of a rank: of a module of allpull, of a user's command, or under mpirun."""
