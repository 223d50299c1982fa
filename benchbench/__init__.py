"""accelbench: the same deep-learning work on every framework, measured and checked."""

__version__ = "0.1.0"
