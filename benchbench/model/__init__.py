"""The data model: frozen values that other packages exchange and store."""
