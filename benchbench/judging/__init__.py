"""Statistical judgement of measurements: variance, comparisons, rankings, checks and change points."""
