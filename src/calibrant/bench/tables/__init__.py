"""Results as cells, statistics, tables, pictures and a page."""
