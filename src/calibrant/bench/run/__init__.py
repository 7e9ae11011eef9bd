"""Making runs: here, in a pool of processes or on a Ray cluster; locks, folders, status, costs."""
