"""Parquet files of numbers and names, written and read with NumPy: flat columns, Zstandard, statistics."""
