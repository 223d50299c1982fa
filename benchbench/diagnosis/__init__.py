"""Diagnose the machine: conditions that distort measurements, its best rates, its noise, a self-test."""
