"""Many runs: a series per case, and where its level changed."""
