"""Records become rows: metrics, digests, plausibility, ceilings, prices."""
