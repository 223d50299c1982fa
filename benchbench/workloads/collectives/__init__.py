"""Collectives: arrays that pass between devices."""
