"""The results store: Parquet files, their rows, and archives that carry them."""
