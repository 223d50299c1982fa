"""Workloads by kind and family. The folders are the registry."""
