"""The answers of commands as documents: facts, tables of typed cells, plots, notes."""
