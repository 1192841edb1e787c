"""Simulation of training on many hosts, based on costs measured on one machine."""
