"""A suite measured on every machine of a cluster: one run for each, stored here as its records come."""
