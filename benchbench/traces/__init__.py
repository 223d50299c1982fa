"""Convert profilers' trace formats to spans and profiles."""
