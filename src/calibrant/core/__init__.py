"""What every room uses: errors, the registry, method text, files, progress, threads."""
