"""Make runs in this process, in a pool or on a Ray cluster; locks, folders and status."""
