"""Sends a server requests at a given rate, and says how long the answers took and whether they are right.

Requests are sent when they are due, whether or not the ones before are answered, and an answer's time counts
from then: so a server that stalls cannot hide it, as it can from clients that wait for each answer.
"""
