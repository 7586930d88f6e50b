"""What all experiments of `vitreous reproduce` share: cells, their runs, statistics, tables and figures."""
