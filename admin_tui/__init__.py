"""The admin console: a client of the admin API and of nothing else."""
