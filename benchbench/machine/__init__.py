"""The machine: hardware, environment, and conditions during measurements."""
