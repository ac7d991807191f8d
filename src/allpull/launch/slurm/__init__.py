"""Run jobs with Slurm."""
