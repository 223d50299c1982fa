"""How a run is measured: requests, workers, rounds, records."""
