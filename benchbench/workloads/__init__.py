"""Workloads, by kind and family; the folders are the registry."""
