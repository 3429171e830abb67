"""Tables of users' data, read, checked and numbered by DuckDB."""
