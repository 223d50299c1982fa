"""Interpreters a framework is measured under: which, built how, how large."""
