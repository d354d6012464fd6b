"""Parts that benchmarks share: alternating rounds and texts of tables (`tools.table` has the tables)."""
