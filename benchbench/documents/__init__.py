"""Results of commands as documents: facts, tables of typed cells, plots and notes."""
