"""Plan cases from suites, and compare plans."""
